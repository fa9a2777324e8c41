/* The compiled library: the merge engine, which reads Chrome trace events at the speed of memory and writes them with other
 * numbers; signals.c, with which a rank notices that it is about to end; and apart.c, for what works beside it.
 *
 * The engine takes any JSON, in any order of keys and any layout. It never recurses, never reads behind the text it is given, and
 * allocates memory only in the interner and in slices.c. merge/scan/plain/ gives the same results in Python, slower.
 *
 * All parts are one translation unit: the scanner is made of functions of a few instructions, called for each byte, key
 * and number, which the compiler inlines. Compiled as separate units, a scan that looks into `args` takes a seventh longer.
 */
#define _GNU_SOURCE
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
#include "damage.c"
#include "events.c"
#include "rewrite.c"
#include "slices.c"
#include "signals.c"
#include "apart.c"

#ifndef SOURCE_ID
#define SOURCE_ID 0
#endif
#ifndef COMPILED_HOW
#define COMPILED_HOW "by hand"
#endif

/* A checksum of these files, set when they are compiled: a library that is older than its source is not used. */
uint32_t source_id(void) { return SOURCE_ID; }

/* What a person is told of how this library was compiled. */
const char *compiled_how(void) { return COMPILED_HOW; }
