/* libFuzzer target: lanes of slices that overlap. A slice is four bytes: thread, start behind the one before, duration (two
 * bytes, or a row that asks for the lane of a slice). The first four bytes are the tolerance, the lanes, how long durations
 * are, and the rows of a part. Parts have to give what all rows at once do.
 */
#include "engine_under_test.h"

enum { MOST_SLICES = 300 };

typedef struct {
    int64_t n, row[MOST_SLICES], start[MOST_SLICES], dur[MOST_SLICES], cut[MOST_SLICES];
    int32_t thread[MOST_SLICES], lane[MOST_SLICES];
} Slices;

static int by_thread_and_start(const void *a, const void *b) {
    const int64_t *i = a, *j = b;
    if (i[0] != j[0]) return i[0] < j[0] ? -1 : 1;
    if (i[1] != j[1]) return i[1] < j[1] ? -1 : 1;
    return i[2] > j[2] ? -1 : i[2] < j[2];
}

/* In the order of a sweep. */
static void read_slices(const uint8_t *data, size_t size, Slices *s) {
    int64_t scale = data[2] == 255 ? LATEST / 65536 : data[2] % 4 + 1, now = 0, sorted[MOST_SLICES][3];
    s->n = 0;
    for (size_t at = 4; at + 4 <= size && s->n < MOST_SLICES; at += 4, s->n++) {
        if (data[at] & 128) now = 0; /* slices come in any order */
        now += data[at + 1];
        sorted[s->n][0] = data[at] % 4, sorted[s->n][1] = now;
        int asks = data[at + 3] >= 240;
        sorted[s->n][2] = asks ? AROUND - data[at + 3] % 2 : (data[at + 2] + 256 * (data[at + 3] % 4)) * scale;
    }
    qsort(sorted, s->n, sizeof *sorted, by_thread_and_start);
    for (int64_t i = 0; i < s->n; i++)
        s->row[i] = i, s->thread[i] = (int32_t)sorted[i][0], s->start[i] = sorted[i][1], s->dur[i] = sorted[i][2];
}

/* Lanes and cuts of all rows, taken in by parts in buffers without a byte to spare. */
static void find_lanes(Slices *s, const uint8_t *data, int64_t part) {
    Lanes *l = lanes_new(data[0], 1 + data[1] % 8);
    expect(l != NULL, "memory");
    for (int64_t from = 0; from < s->n; from += part) {
        int64_t n = s->n - from < part ? s->n - from : part, *row = malloc(n * 8), *start = malloc(n * 8);
        int64_t *dur = malloc(n * 8), *cuts = malloc(n * 8);
        int32_t *thread = malloc(n * 4), *lanes = malloc(n * 4);
        memcpy(row, s->row + from, n * 8), memcpy(start, s->start + from, n * 8), memcpy(dur, s->dur + from, n * 8);
        memcpy(thread, s->thread + from, n * 4);
        expect(lanes_add(l, n, row, thread, start, dur, lanes, cuts), "memory");
        memcpy(s->lane + from, lanes, n * 4), memcpy(s->cut + from, cuts, n * 8);
        for (int64_t i = 0; i < lanes_num_late(l); i++) {
            Late late = lanes_late(l)[i];
            expect(late.row >= 0 && late.row < from, "what is late is of an earlier part");
            if (late.lane >= 0) s->lane[late.row] = (int32_t)late.lane;
            else s->cut[late.row] = late.cut;
        }
        free(row), free(start), free(dur), free(cuts), free(thread), free(lanes);
    }
    lanes_free(l);
}

/* Slices of one lane lie in each other or beside each other; each is cut if at all, and never to less than nothing. */
static void check_lanes(const Slices *s, int32_t max_lanes) {
    for (int64_t i = 0; i < s->n; i++) {
        if (s->dur[i] < 0) continue;
        expect(s->lane[i] >= 0 && s->lane[i] < max_lanes, "a lane that is there");
        expect(s->cut[i] >= -1 && s->cut[i] < (s->dur[i] ? s->dur[i] : 1), "what is cut is shorter");
        for (int64_t j = 0; j < i; j++) {
            if (s->dur[j] < 0 || s->thread[i] != s->thread[j] || s->lane[i] != s->lane[j]) continue;
            int64_t from = s->start[i], to = from + (s->cut[i] < 0 ? s->dur[i] : s->cut[i]);
            int64_t other = s->start[j], end = other + (s->cut[j] < 0 ? s->dur[j] : s->cut[j]);
            int is_beside = to <= other || end <= from;
            int is_inside = (from <= other && end <= to) || (other <= from && to <= end);
            expect(is_beside || is_inside, "slices of a lane nest");
        }
    }
}

/* A row that asks gets the lane of the slice that begins next, if one does on its thread. */
static void check_next(const Slices *s) {
    for (int64_t i = 0; i < s->n; i++) {
        if (s->dur[i] != FOLLOWING) continue;
        int64_t next = i + 1;
        while (next < s->n && s->thread[next] == s->thread[i] && s->dur[next] < 0) next++;
        int is_there = next < s->n && s->thread[next] == s->thread[i];
        expect(s->lane[i] == (is_there ? s->lane[next] : -1), "the lane of the slice that follows");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4) return 0;
    static Slices whole, parts;
    read_slices(data, size, &whole);
    parts = whole;
    find_lanes(&whole, data, MOST_SLICES);
    check_lanes(&whole, 1 + data[1] % 8), check_next(&whole);
    find_lanes(&parts, data, 1 + data[3] % 16);
    expect(!memcmp(whole.lane, parts.lane, whole.n * sizeof *whole.lane), "parts give the same lanes");
    expect(!memcmp(whole.cut, parts.cut, whole.n * sizeof *whole.cut), "parts give the same cuts");
    return 0;
}
