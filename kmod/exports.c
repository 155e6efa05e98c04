// SPDX-License-Identifier: GPL-2.0-only
/* What hallway_vsock.ko needs of this module: for it alone. */
#include "compat/namespace.h"
#include "obs/counters.h"
#include "sock/spin.h"
#include "sock/wake.h"

HALL_EXPORT(hall_channel_accept);
HALL_EXPORT(hall_channel_close);
HALL_EXPORT(hall_channel_decline);
HALL_EXPORT(hall_channel_find);
HALL_EXPORT(hall_channel_free);
HALL_EXPORT(hall_channel_hold);
HALL_EXPORT(hall_channel_map_area);
HALL_EXPORT(hall_channel_map_ring);
HALL_EXPORT(hall_channel_notify_receiver);
HALL_EXPORT(hall_channel_notify_sender);
HALL_EXPORT(hall_channel_open);
HALL_EXPORT(hall_channel_raise);
HALL_EXPORT(hall_channel_raise_all);
HALL_EXPORT(hall_channel_register);
HALL_EXPORT(hall_channel_release);
HALL_EXPORT(hall_channel_send);
HALL_EXPORT(hall_channel_setup);
HALL_EXPORT(hall_channel_take_offer);
HALL_EXPORT(hall_channel_tunnel);
HALL_EXPORT(hall_channel_unregister);
HALL_EXPORT(hall_cid);
HALL_EXPORT(hall_copied_charge);
HALL_EXPORT(hall_copied_uncharge);
HALL_EXPORT(hall_counters);
HALL_EXPORT(hall_member_charge);
HALL_EXPORT(hall_member_has_cid);
HALL_EXPORT(hall_member_put);
HALL_EXPORT(hall_member_uncharge);
HALL_EXPORT(hall_members_get_by_cid);
HALL_EXPORT(hall_members_next_cid);
HALL_EXPORT(hall_members_walk);
HALL_EXPORT(hall_memory_alloc);
HALL_EXPORT(hall_memory_alloc_large);
HALL_EXPORT(hall_memory_alloc_ring);
HALL_EXPORT(hall_memory_free);
HALL_EXPORT(hall_ring_arm_edge);
HALL_EXPORT(hall_ring_arm_head);
HALL_EXPORT(hall_ring_arm_tail);
HALL_EXPORT(hall_ring_count_space);
HALL_EXPORT(hall_ring_count_unread);
HALL_EXPORT(hall_ring_count_used);
HALL_EXPORT(hall_ring_find_most);
HALL_EXPORT(hall_ring_find_source);
HALL_EXPORT(hall_ring_finish);
HALL_EXPORT(hall_ring_get_rx_span);
HALL_EXPORT(hall_ring_get_tx_span);
HALL_EXPORT(hall_ring_grow);
HALL_EXPORT(hall_ring_init_tx);
HALL_EXPORT(hall_ring_is_truncated);
HALL_EXPORT(hall_ring_report_short);
HALL_EXPORT(hall_ring_set_end);
HALL_EXPORT(hall_ring_set_reset);
HALL_EXPORT(hall_ring_set_start);
HALL_EXPORT(hall_ring_truncate_unread);
HALL_EXPORT(hall_send_round);
HALL_EXPORT(hall_sock_spin);
HALL_EXPORT(hall_sock_wants_edges);
HALL_EXPORT(hall_turn_init);
HALL_EXPORT(hall_turn_trylock);
