/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * As much of the kernel as kmod/discovery/members.c needs besides, in threads:
 * lists, a hash of addresses, a mutex, and RCU whose grace periods are real:
 * what is freed before its readers are done is used after it was freed.
 */
#ifndef TESTS_RING_SHIM_LISTS_H
#define TESTS_RING_SHIM_LISTS_H

#include "kernel.h"

#include <pthread.h>
#include <stddef.h>

#define __force
#define container_of(pointer, type, member) \
	((type *)((char *)(pointer) - offsetof(type, member)))

static inline void *kzalloc(size_t size, gfp_t gfp)
{
	(void)gfp;
	return shim_no_memory ? NULL : calloc(1, size);
}

/* Lists: their users hold a mutex. */

#define LIST_HEAD(name) struct list_head name = { &(name), &(name) }

static inline void INIT_LIST_HEAD(struct list_head *list)
{
	list->next = list->prev = list;
}

static inline void list_add_tail(struct list_head *new, struct list_head *head)
{
	new->next = head;
	new->prev = head->prev;
	head->prev->next = new;
	head->prev = new;
}

static inline void list_del(struct list_head *entry)
{
	MUST(entry->next);
	entry->next->prev = entry->prev;
	entry->prev->next = entry->next;
	entry->next = entry->prev = NULL;
}

#define list_entry(pointer, type, member) container_of(pointer, type, member)
#define list_for_each_entry(pos, head, member) \
	for (pos = list_entry((head)->next, typeof(*pos), member); \
	     &pos->member != (head); \
	     pos = list_entry(pos->member.next, typeof(*pos), member))
#define list_for_each_entry_safe(pos, n, head, member) \
	for (pos = list_entry((head)->next, typeof(*pos), member), \
	     n = list_entry(pos->member.next, typeof(*pos), member); \
	     &pos->member != (head); \
	     pos = n, n = list_entry(n->member.next, typeof(*n), member))

/* Lists that readers walk under RCU: what is taken out still leads on. */
#define list_add_tail_rcu(new, head) do { \
	(new)->next = (head); \
	(new)->prev = (head)->prev; \
	__atomic_store_n(&(head)->prev->next, (new), __ATOMIC_RELEASE); \
	(head)->prev = (new); \
} while (0)

static inline void list_del_rcu(struct list_head *entry)
{
	MUST(entry->prev->next == entry && entry->next->prev == entry);
	entry->next->prev = entry->prev;
	__atomic_store_n(&entry->prev->next, entry->next, __ATOMIC_RELEASE);
}

#define list_at(pos, link, member) \
	list_entry(__atomic_load_n(link, __ATOMIC_ACQUIRE), typeof(*pos), member)
#define list_for_each_entry_rcu(pos, head, member) \
	for (pos = list_at(pos, &(head)->next, member); &pos->member != (head); \
	     pos = list_at(pos, &pos->member.next, member))

/* Chains: written under a mutex, read under RCU. */

struct hlist_node {
	struct hlist_node *next, **from;
};

struct hlist_head {
	struct hlist_node *first;
};

static inline void hlist_add_tail_rcu(struct hlist_node *node,
				      struct hlist_head *head)
{
	struct hlist_node **link = &head->first;

	while (*link)
		link = &(*link)->next;
	node->next = NULL;
	node->from = link;
	__atomic_store_n(link, node, __ATOMIC_RELEASE);
}

static inline void hlist_del_rcu(struct hlist_node *node)
{
	if (node->next)
		node->next->from = node->from;
	__atomic_store_n(node->from, node->next, __ATOMIC_RELEASE);
}

#define hlist_at(pos, link, member) ({ \
	struct hlist_node *at = __atomic_load_n(link, __ATOMIC_ACQUIRE); \
	at ? container_of(at, typeof(*pos), member) : NULL; \
})
#define hlist_for_each_entry_rcu(pos, head, member, held) \
	for (pos = hlist_at(pos, &(head)->first, member); pos; \
	     pos = hlist_at(pos, &pos->member.next, member))

#define get_random_u32()	4711u

static inline u32 jhash2(const u32 *word, u32 words, u32 hash)
{
	while (words--)
		hash = (hash ^ *word++) * 0x9e3779b1u;
	return hash ^ hash >> 15;
}

#define ipv6_addr_equal(a, b) (!memcmp(a, b, sizeof(struct in6_addr)))
#define ipv6_addr_v4mapped(a) \
	(!memcmp(a, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12))

/* A mutex */

struct mutex {
	pthread_mutex_t lock;
};

#define DEFINE_MUTEX(name)	struct mutex name = { PTHREAD_MUTEX_INITIALIZER }
#define mutex_lock(mutex)	pthread_mutex_lock(&(mutex)->lock)
#define mutex_trylock(mutex)	(!pthread_mutex_trylock(&(mutex)->lock))
#define mutex_unlock(mutex)	pthread_mutex_unlock(&(mutex)->lock)

/* RCU, with the names that the shim's empty one leaves free */

struct rcu_head {
	void *object;
	struct rcu_head *next;
};

extern pthread_rwlock_t shim_readers;
extern struct rcu_head *shim_dead;	/* of the one thread that writes */

static inline void synchronize_rcu(void)
{
	pthread_rwlock_wrlock(&shim_readers);
	pthread_rwlock_unlock(&shim_readers);
}

static inline void rcu_barrier(void)
{
	struct rcu_head *dead;

	synchronize_rcu();
	while ((dead = shim_dead)) {
		shim_dead = dead->next;
		free(dead->object);
	}
}

#define kfree_rcu(pointer, member) do { \
	(pointer)->member.object = (pointer); \
	(pointer)->member.next = shim_dead; \
	shim_dead = &(pointer)->member; \
} while (0)

#endif /* TESTS_RING_SHIM_LISTS_H */
