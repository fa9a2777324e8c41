/* Rewriting: events with other numbers. All text between the numbers is copied as it is. */

static const char PAIRS[] = "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
                            "4950515253545556575859606162636465666768697071727374757677787980818283848586878889909192939495"
                            "96979899";

static uint8_t *put_integer(uint8_t *out, int64_t value) {
    uint8_t digits[20], *p = digits + sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) *out++ = '-';
    for (; rest >= 100; rest /= 100) p -= 2, memcpy(p, PAIRS + 2 * (rest % 100), 2);
    if (rest >= 10) p -= 2, memcpy(p, PAIRS + 2 * rest, 2);
    else *--p = '0' + (uint8_t)rest;
    return copy(out, p, digits + sizeof digits - p);
}

static uint8_t *put_microseconds(uint8_t *out, int64_t ns) {
    if (ns < 0) *out++ = '-', ns = -ns;
    out = put_integer(out, ns / 1000);
    int rest = (int)(ns % 1000);
    *out++ = '.', *out++ = '0' + rest / 100, *out++ = '0' + rest / 10 % 10, *out++ = '0' + rest % 10;
    return out;
}

static uint8_t *put_key(uint8_t *out, int *comma, const char *key) {
    if (*comma) *out++ = ',';
    *comma = 1, *out++ = '"';
    memcpy(out, key, 3);
    memcpy(out + 3, "\":", 2);
    return out + 5;
}

/* The number for an id: its own value beside the rank's where it is a small one, else one that is given out in order. */
static int64_t link_of(Interner *ids, const uint8_t *p, int64_t n, int64_t first) {
    if (n >= 2 && *p == '"' && p[n - 1] == '"') p++, n -= 2;
    int64_t value = n && *p != '-' ? integer(p, n) : NONE;
    if (value != NONE && value < INT64_C(1) << 31) return first + value;
    return first + (INT64_C(1) << 31) + interner_add(ids, p, n);
}

/* Phases whose id links events: arrows, asynchronous events, objects, samples, memory dumps, contexts. */
static const uint8_t IS_LINKED[256] = {
    ['s'] = 1, ['t'] = 1, ['f'] = 1, ['b'] = 1, ['e'] = 1, ['n'] = 1, ['S'] = 1, ['T'] = 1, ['p'] = 1, ['F'] = 1, ['N'] = 1,
    ['O'] = 1, ['D'] = 1, ['P'] = 1, ['v'] = 1, ['V'] = 1, ['('] = 1, [')'] = 1,
};

/* The number for what links each event with others: its id, or the bind_id of a slice; NONE for the rest. 0 without
 * memory. */
int32_t link_rows(const uint8_t *buf, const Columns *c, Interner *ids, int64_t *links) {
    for (int64_t row = 0; row < c->num_rows; row++) {
        const int32_t *spans = c->spans + 2 * NUM_SPANS * row, *id = spans + 2 * BIND_ID;
        if (IS_LINKED[c->phase[row]]) id = spans + 2 * (spans[2 * ID + 1] ? ID : ID2);
        links[row] = id[1] ? link_of(ids, buf + id[0], id[1], 0) : NONE;
    }
    return !ids->failed;
}

/* Where the id stands that an id2 shares with all processes, the last one of several; 0 where it is of one process alone. */
static int global_id(const uint8_t *from, const uint8_t *end, int32_t *offset, int32_t *len) {
    const uint8_t *p = from, *stop;
    uint8_t flags = 0;
    int ok = *p == '{', found = 0;
    while (ok && p < end && *p != '}') {
        const uint8_t *key = blank(p + 1, end), *value = key < end ? key_end(key, end, &stop, &flags, &ok) : NULL;
        if (!value || !ok) return 0;
        value = blank(value, end);
        p = value_end(value, end, DEEPEST, &flags, &ok);
        if (!p || !ok) return 0;
        if (is_spelled(key + 1, stop - key - 1, "global"))
            *offset = (int32_t)(value - from), *len = (int32_t)(p - value), found = 1;
        p = blank(p, end);
    }
    return found;
}

/* Events with keep[row], joined by ",\n", with the numbers given. New times are in ns; NONE leaves the text alone, and
 * in links[row] gives the id a number. keep[row] NO_ARROW takes the arrow of a slice away.
 * Returns the bytes written, -1 without memory; out has room for the text and 192 bytes a row. */
int64_t rewrite_events(const uint8_t *buf, const Columns *c, const uint8_t *keep, const int64_t *pid, const int64_t *tid,
                       const int64_t *ts_ns, const int64_t *dur_ns, const int64_t *links, Interner *ids,
                       int64_t first_id, uint8_t *out) {
    uint8_t *start = out;
    for (int64_t row = 0; row < c->num_rows; row++) {
        if (!keep[row]) continue;
        if (out != start) *out++ = ',', *out++ = '\n';
        const int32_t *spans = c->spans + 2 * NUM_SPANS * row;
        int32_t places[NUM_SPANS][3];
        int n = 0;
        int linked = IS_LINKED[c->phase[row]];
        for (int which = 0; which < ARGS; which++) {
            int32_t offset = spans[2 * which], len = spans[2 * which + 1], inner;
            if (!len) continue;
            if ((which == TS && ts_ns[row] == NONE) || (which == DUR && dur_ns[row] == NONE)) continue;
            if ((which == ID && !linked) || (which == SCOPE && !(c->flags[row] & GLOBAL))) continue;
            if (which == ID2) {
                if (!global_id(buf + offset, buf + offset + len, &inner, &len)) continue;
                offset += inner;
            }
            int at = n++;
            for (; at && places[at - 1][0] > offset; at--) memcpy(places[at], places[at - 1], sizeof *places);
            places[at][0] = offset, places[at][1] = len, places[at][2] = which;
        }
        int32_t from = c->start[row];
        for (int i = 0; i < n; i++) {
            out = copy(out, buf + from, places[i][0] - from);
            const uint8_t *old = buf + places[i][0];
            int32_t len = places[i][1];
            switch (places[i][2]) {
            case PID: out = put_integer(out, pid[row]); break;
            case TID: out = put_integer(out, tid[row]); break;
            case TS: out = put_microseconds(out, ts_ns[row]); break;
            case DUR: out = put_microseconds(out, dur_ns[row]); break;
            case SCOPE: memcpy(out, "\"p\"", 3), out += 3; break;
            case ID2: *out++ = '"', out = put_integer(out, link_of(ids, old, len, first_id)), *out++ = '"'; break;
            default:
                if (places[i][2] == BIND_ID && keep[row] == NO_ARROW) memcpy(out, "null", 4), out += 4;
                else out = put_integer(out, links[row] != NONE ? links[row] : link_of(ids, old, len, first_id));
            }
            from = places[i][0] + len;
        }
        out = copy(out, buf + from, c->end[row] - from);
        /* what is not there and has to be: a process, a thread, the duration of a slice */
        int no_pid = !spans[2 * PID + 1], no_tid = !spans[2 * TID + 1];
        int no_dur = !spans[2 * DUR + 1] && dur_ns[row] != NONE;
        if (no_pid || no_tid || no_dur) {
            out--;
            const uint8_t *before = out - 1;
            while (*before == ' ' || *before == '\n' || *before == '\t' || *before == '\r') before--;
            int comma = *before != '{';
            if (no_pid) out = put_integer(put_key(out, &comma, "pid"), pid[row]);
            if (no_tid) out = put_integer(put_key(out, &comma, "tid"), tid[row]);
            if (no_dur) out = put_microseconds(put_key(out, &comma, "dur"), dur_ns[row]);
            *out++ = '}';
        }
    }
    return ids->failed ? -1 : out - start;
}
