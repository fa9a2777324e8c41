/* libFuzzer target: slices that overlap, and the innermost slice at a time. A slice is four bytes: thread, start behind the
 * one before, duration (two bytes). The first three bytes are the tolerance, the lanes, and how long durations are.
 */
#include "engine_under_test.h"

enum { MOST_SLICES = 300 };

typedef struct {
    int64_t n, order[MOST_SLICES], start[MOST_SLICES], dur[MOST_SLICES], cut[MOST_SLICES];
    int32_t thread[MOST_SLICES], lane[MOST_SLICES];
} Slices;

static Slices *sorted_by;

static int by_thread_and_start(const void *a, const void *b) {
    int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    const Slices *s = sorted_by;
    if (s->thread[i] != s->thread[j]) return s->thread[i] < s->thread[j] ? -1 : 1;
    if (s->start[i] != s->start[j]) return s->start[i] < s->start[j] ? -1 : 1;
    if (s->dur[i] != s->dur[j]) return s->dur[i] > s->dur[j] ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* Slices of one lane lie in each other or beside each other, each is cut if at all, and never to less than nothing. */
static void check_lanes(const Slices *s, int32_t max_lanes) {
    for (int64_t i = 0; i < s->n; i++) {
        expect(s->lane[i] >= 0 && s->lane[i] < max_lanes, "a lane that is there");
        expect(s->cut[i] >= -1 && s->cut[i] < (s->dur[i] ? s->dur[i] : 1), "what is cut is shorter");
        for (int64_t j = 0; j < i; j++) {
            if (s->thread[i] != s->thread[j] || s->lane[i] != s->lane[j]) continue;
            int64_t from = s->start[i], to = from + (s->cut[i] < 0 ? s->dur[i] : s->cut[i]);
            int64_t other = s->start[j], end = other + (s->cut[j] < 0 ? s->dur[j] : s->cut[j]);
            int is_beside = to <= other || end <= from;
            int is_inside = (from <= other && end <= to) || (other <= from && to <= end);
            expect(is_beside || is_inside, "slices of a lane nest");
        }
    }
}

static void check_innermost(const Slices *s) {
    int64_t start[MOST_SLICES], end[MOST_SLICES], at[MOST_SLICES], found[MOST_SLICES], n = 0, before = INT64_MIN;
    for (int64_t i = 0; i < s->n; i++) {
        if (s->start[i] < before) continue;
        start[n] = before = s->start[i], end[n] = start[n] + s->dur[i], at[n] = start[n] + s->dur[n] / 2, n++;
    }
    for (int64_t i = 1; i < n; i++)
        if (at[i] < at[i - 1]) at[i] = at[i - 1];
    expect(find_innermost(n, start, end, n, at, found), "memory");
    for (int64_t i = 0; i < n; i++) {
        int64_t last = -1;
        for (int64_t j = 0; j < n && start[j] <= at[i]; j++)
            if (end[j] >= at[i]) last = j;
        expect(found[i] == last, "the last slice that has begun and not ended");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    static Slices s;
    int64_t tolerance = data[0], scale = data[2] == 255 ? LATEST / 65536 : data[2] % 4 + 1, now = 0;
    int32_t max_lanes = 1 + data[1] % 8;
    s.n = 0;
    for (size_t at = 3; at + 4 <= size && s.n < MOST_SLICES; at += 4, s.n++) {
        if (data[at] & 128) now = 0; /* slices come in any order */
        now += data[at + 1];
        s.order[s.n] = s.n, s.thread[s.n] = data[at] % 4, s.start[s.n] = now, s.lane[s.n] = 0, s.cut[s.n] = -1;
        s.dur[s.n] = (data[at + 2] + 256 * (data[at + 3] % 4)) * scale;
    }
    sorted_by = &s;
    qsort(s.order, s.n, sizeof *s.order, by_thread_and_start);
    int64_t found = find_overlaps(s.n, s.order, s.start, s.dur, s.thread, tolerance, max_lanes, s.lane, s.cut);
    expect(found >= 0 && found <= 2 * s.n, "slices stick out once");
    check_lanes(&s, max_lanes);
    check_innermost(&s);
    return 0;
}
