// SPDX-License-Identifier: GPL-2.0-only
/*
 * Round trips between two VMs by the doorbells of ivshmem, and nothing else: what no
 * carrier can beat that wakes its peer by them. Hallway's module is not loaded meanwhile.
 * In /sys/module/doorbell/parameters:
 *
 *   peer       the number of the other VM, as this VM's device has it: 0 rings none
 *   trips      how many round trips to make: the write returns after the last one
 *   median_ns  of these
 *
 * A VM that makes no trips answers each doorbell by one.
 */
#include <linux/completion.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/sort.h>

#define REG_DOORBELL	12
#define TRIPS_MAX	100000
#define PATIENCE	(30 * HZ)

static unsigned int peer;
module_param(peer, uint, 0644);
MODULE_PARM_DESC(peer, "the number of the other VM");

static unsigned int median_ns;
module_param(median_ns, uint, 0444);
MODULE_PARM_DESC(median_ns, "nanoseconds of a round trip");

static void __iomem *regs;
static DECLARE_COMPLETION(ended);
static bool answers = true;		/* until this VM makes trips: two would ring for ever */
static unsigned int trips, made;	/* 0 trips: none are being made */
static u64 rung_at;
static u32 took[TRIPS_MAX];

static void ring_peer(void)
{
	u32 id = READ_ONCE(peer);

	if (id)
		writel(id << 16, regs + REG_DOORBELL);
}

static irqreturn_t take_doorbell(int irq, void *data)
{
	u64 now = ktime_get_ns();
	/* Pairs with that of make_trips(). */
	unsigned int wanted = smp_load_acquire(&trips);

	if (wanted) {
		took[made++] = min_t(u64, now - rung_at, U32_MAX);
		if (made == wanted) {
			WRITE_ONCE(trips, 0);
			complete(&ended);
			return IRQ_HANDLED;
		}
		rung_at = ktime_get_ns();
	}
	if (wanted || READ_ONCE(answers))
		ring_peer();
	return IRQ_HANDLED;
}

static int compare(const void *a, const void *b)
{
	u32 left = *(const u32 *)a, right = *(const u32 *)b;

	return left < right ? -1 : left > right;
}

static int make(unsigned int wanted)
{
	if (!regs || !peer || !wanted || wanted > TRIPS_MAX)
		return -EINVAL;
	WRITE_ONCE(answers, false);
	reinit_completion(&ended);
	made = 0;
	rung_at = ktime_get_ns();
	/* All of it before the first answer. */
	smp_store_release(&trips, wanted);
	ring_peer();
	if (!wait_for_completion_timeout(&ended, PATIENCE)) {
		WRITE_ONCE(trips, 0);
		return -ETIMEDOUT;
	}
	sort(took, wanted, sizeof(*took), compare, NULL);
	median_ns = took[wanted / 2];
	return 0;
}

/* The kernel writes one parameter of a module at a time. */
static int make_trips(const char *text, const struct kernel_param *unused)
{
	unsigned int wanted;
	int err = kstrtouint(text, 0, &wanted);

	if (err)
		return err;
	/* A write holds no reference, and the registers have to stay. */
	if (!try_module_get(THIS_MODULE))
		return -ENODEV;
	err = make(wanted);
	module_put(THIS_MODULE);
	return err;
}

static const struct kernel_param_ops trips_ops = { .set = make_trips };
module_param_cb(trips, &trips_ops, NULL, 0200);
MODULE_PARM_DESC(trips, "how many round trips to make");

static int probe(struct pci_dev *pdev, const struct pci_device_id *unused)
{
	int err;

	/* A region has no doorbell. */
	if (regs || !pdev->msix_cap)
		return -ENODEV;
	err = pcim_enable_device(pdev);
	if (err)
		return err;
	regs = pci_ioremap_bar(pdev, 0);
	if (!regs)
		return -ENOMEM;
	pci_set_master(pdev);
	err = pci_alloc_irq_vectors(pdev, 1, 1, PCI_IRQ_MSIX);
	if (err < 0)
		goto unmap;
	err = request_irq(pci_irq_vector(pdev, 0), take_doorbell, 0, "doorbell", NULL);
	if (err)
		goto vectors;
	return 0;
vectors:
	pci_free_irq_vectors(pdev);
unmap:
	iounmap(regs);
	regs = NULL;
	return err;
}

static void leave(struct pci_dev *pdev)
{
	free_irq(pci_irq_vector(pdev, 0), NULL);
	pci_free_irq_vectors(pdev);
	iounmap(regs);
	regs = NULL;
}

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_REDHAT_QUMRANET, 0x1110) },
	{ }
};

static struct pci_driver doorbell_driver = {
	.name = "doorbell",
	.id_table = ids,
	.probe = probe,
	.remove = leave,
};
module_pci_driver(doorbell_driver);

MODULE_DESCRIPTION("Round trips by ivshmem's doorbells");
MODULE_LICENSE("GPL");
