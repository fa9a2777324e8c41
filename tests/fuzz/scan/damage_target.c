/* libFuzzer target: a scan that goes on behind damage by itself. The text is followed by events that are whole, since reading
 * goes on only where enough text shows what stands there. The first byte says how it is scanned.
 */
#include "engine_under_test.h"

enum { MOST_ROWS = 600, NUM_BEHIND = 250 };

static const char WHOLE[] = ",{\"ph\":\"X\",\"ts\":1}";

typedef struct {
    uint8_t *at;
    int64_t len;
} Buffer;

/* The text and the events behind it, in a buffer without a byte to spare. */
static Buffer followed(const uint8_t *text, int64_t len) {
    const int64_t size = sizeof WHOLE - 1;
    Buffer all = {malloc(len + size * NUM_BEHIND), len + size * NUM_BEHIND};
    if (len) memcpy(all.at, text, len);
    for (int64_t i = 0; i < NUM_BEHIND; i++) memcpy(all.at + len + i * size, WHOLE, size);
    return all;
}

/* What is found is an event for a scan that begins there, too. */
static void check_event(Buffer all, int64_t start, int64_t end, uint8_t flags, uint8_t phase, Columns *one) {
    expect(scan_events(all.at, all.len, &start, one) != NO_MEMORY && one->num_rows == 1, "an event is one");
    expect(one->end[0] == end && one->flags[0] == flags && one->phase[0] == phase, "an event is the same");
}

/* Every byte is in an event, lost, or between events. */
static void check_bytes(Buffer all, const Columns *c, int64_t from, int64_t to) {
    int64_t events = 0, between = 0;
    for (int64_t row = 0; row < c->num_rows; row++) events += c->end[row] - c->start[row];
    for (int64_t at = from; at < to; at++) between += strchr(", \n\t\r]", all.at[at]) && all.at[at];
    expect((c->num_damaged > 0) == (c->lost_bytes > 0), "what is damaged loses bytes");
    int64_t left = to - from - events - c->lost_bytes;
    expect(left >= 0 && left <= between, "every byte is accounted for");
}

static void check_search(Buffer all, int64_t at) {
    int64_t found = find_event(all.at, at, all.len);
    expect(found == -1 || (found > at && found < all.len && all.at[found] == '{'), "an event begins with its brace");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    Buffer all = followed(data + 1, (int64_t)size - 1);
    Columns c = new_columns(data[0] < 100 ? 1 + data[0] : MOST_ROWS, data[0] % 5, data[0] % 2), one = new_columns(1, 0, 0);
    c.recovers = 1;
    int64_t at = 0;
    for (int stops = 0; stops < 50;) {
        int64_t from = at;
        int32_t status = scan_events(all.at, all.len, &at, &c);
        expect(at >= from && at <= all.len, "reading goes on");
        check_rows(&c, from, at), check_bytes(all, &c, from, at);
        int skimmed = c.skims && !c.num_wanted;
        for (int64_t row = 0; row < c.num_rows && row < 10 && !skimmed; row++)
            check_event(all, c.start[row], c.end[row], c.flags[row], c.phase[row], &one);
        if (status == MORE) break;
        if (status == FULL) continue;
        check_search(all, at), stops++;
        at += status == MALFORMED;
        if (at > all.len) break;
    }
    free_columns(&c), free_columns(&one), free(all.at);
    return 0;
}
