/* The compiled merge engine: Chrome trace events are read at the speed of memory and written with other numbers.
 *
 * It knows JSON, not Kineto: any order of keys, any layout. It never recurses, never reads behind the text it is given,
 * and allocates memory only in the interner and in slices.c. ../plain/ gives the same results in Python, slower.
 *
 * All parts are one translation unit, because the scanner is made of functions of a few instructions that are called for
 * each byte, key or number. Compiled as units of their own, a scan that looks into `args` takes about
 * a seventh longer.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "columns.h"
#include "bytes.h"
#include "interner.c"
#include "json.c"
#include "numbers.c"
#include "seen.h"
#include "args.c"
#include "fields.c"
#include "events.c"
#include "rewrite.c"
#include "slices.c"

#ifndef SOURCE_ID
#define SOURCE_ID 0
#endif

/* A checksum of these files, set when they are compiled: a library that is older than its source is not used. */
uint32_t source_id(void) { return SOURCE_ID; }
