/* SPDX-License-Identifier: GPL-2.0-only */
/* The namespace of what hallway.ko exports for hallway_vsock.ko. */
#ifndef HALL_NAMESPACE_H
#define HALL_NAMESPACE_H

#include <linux/export.h>
#include <linux/module.h>

#ifdef HALL_HAS_NAMESPACE_WORDS
#define HALL_EXPORT(symbol)	EXPORT_SYMBOL_NS_GPL(symbol, HALLWAY)
#define HALL_IMPORT		MODULE_IMPORT_NS(HALLWAY)
#else
#define HALL_EXPORT(symbol)	EXPORT_SYMBOL_NS_GPL(symbol, "HALLWAY")
#define HALL_IMPORT		MODULE_IMPORT_NS("HALLWAY")
#endif

#endif /* HALL_NAMESPACE_H */
