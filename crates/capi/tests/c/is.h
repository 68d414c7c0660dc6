/* What the tests in C check with. The function ends with 1 when it is not so, and the line is said. */
#ifndef IS_H
#define IS_H

#include <stdio.h>
#include <string.h>
#include "skep.h"

#define IS(call, want)                                                            \
	do {                                                                      \
		int is_ = (call), want_ = (want);                                 \
		if (is_ != want_) {                                               \
			fprintf(stderr, "line %d: %s: %d, not %d: %s\n", __LINE__, #call, is_, want_, \
				skep_last_error());                               \
			return 1;                                                 \
		}                                                                 \
	} while (0)

/* The last error has this in its text. */
#define SAYS(text) IS(strstr(skep_last_error(), text) != NULL, 1)

#endif
