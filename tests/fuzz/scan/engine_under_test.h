/* The compiled merge engine as fuzzing drives it: allocations that fail when they are told to, columns in memory of their
 * exact size, and `expect`, which ends the program where the engine breaks a promise.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t until_failure = -1; /* so many allocations succeed; below 0 all do */

static int fails(void) { return until_failure >= 0 && until_failure-- == 0; }
static void *try_malloc(size_t size) { return fails() ? NULL : malloc(size); }
static void *try_calloc(size_t count, size_t size) { return fails() ? NULL : calloc(count, size); }
static void *try_realloc(void *old, size_t size) { return fails() ? NULL : realloc(old, size); }

#define malloc try_malloc
#define calloc try_calloc
#define realloc try_realloc
#include "../../../distprof/compiled/engine.c"
#undef malloc
#undef calloc
#undef realloc

static inline void expect(int condition, const char *what) {
    if (!condition) fprintf(stderr, "broken: %s\n", what), abort();
}

static inline Interner *new_interner(void) {
    Interner *in;
    while (!(in = interner_new())) until_failure = -1;
    return in;
}

static inline Columns new_columns(int64_t max_rows, int num_wanted, int skims) {
    static const char *const keys[] = {"External id", "Comms Id", "a", "Input Dims"};
    Columns c = {.max_rows = max_rows, .num_wanted = num_wanted, .skims = skims};
    int32_t **const numbers[] = {&c.start, &c.end, &c.name, &c.category, &c.thread};
    for (int i = 0; i < 5; i++) *numbers[i] = malloc(max_rows * sizeof(int32_t));
    c.spans = malloc(max_rows * 2 * NUM_SPANS * sizeof(int32_t));
    c.ts_ns = malloc(max_rows * sizeof(int64_t)), c.dur_ns = malloc(max_rows * sizeof(int64_t));
    c.phase = malloc(max_rows), c.flags = malloc(max_rows);
    Interner **const interners[] = {&c.names, &c.categories, &c.threads, &c.texts};
    for (int i = 0; i < 4; i++) *interners[i] = new_interner();
    c.wanted = calloc(num_wanted, sizeof *c.wanted);
    for (int i = 0; i < num_wanted; i++) {
        c.wanted[i] = (Wanted){.key = keys[i], .len = (int32_t)strlen(keys[i]), .is_text = i % 2};
        if (i % 2) c.wanted[i].texts = malloc(max_rows * sizeof(int32_t));
        else c.wanted[i].integers = malloc(max_rows * sizeof(int64_t));
    }
    return c;
}

static inline void free_columns(Columns *c) {
    for (int i = 0; i < c->num_wanted; i++) free(c->wanted[i].texts), free(c->wanted[i].integers);
    free(c->wanted);
    interner_free(c->names), interner_free(c->categories), interner_free(c->threads), interner_free(c->texts);
    free(c->start), free(c->end), free(c->name), free(c->category), free(c->thread), free(c->spans), free(c->ts_ns);
    free(c->dur_ns), free(c->phase), free(c->flags);
}

static inline void check_rows(const Columns *c, int64_t from, int64_t to) {
    for (int64_t row = 0; row < c->num_rows; row++) {
        expect(c->start[row] >= from && c->end[row] <= to && c->start[row] < c->end[row], "events follow each other");
        for (int which = 0; which < NUM_SPANS; which++) {
            const int32_t *span = c->spans + 2 * (row * NUM_SPANS + which);
            expect(!span[1] || (span[0] > c->start[row] && span[0] + span[1] < c->end[row]), "fields lie in their event");
        }
        expect(c->name[row] >= 0 && c->name[row] < interner_count(c->names), "names have numbers");
        expect(c->thread[row] >= 0 && c->thread[row] < interner_count(c->threads), "threads have numbers");
        expect(c->ts_ns[row] == NONE || (c->ts_ns[row] < LATEST && c->ts_ns[row] > -LATEST), "times have a limit");
        from = c->end[row];
    }
}
