// SPDX-License-Identifier: MIT OR Apache-2.0
/* Nothing: what entering and leaving costs. */
#include "prog.h"

PROGRAM int empty(void *ctx)
{
	return 0;
}
