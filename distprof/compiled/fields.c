/* Keys of an event, as numbers. */

/* Fields whose place is not kept, beside those of columns.h. */
enum { PHASE = NUM_SPANS, NAME, CATEGORY, BINDING, ARROW_IN, ARROW_OUT, OTHER, NO_FIELD };

static int is(const uint8_t *key, int64_t len, const char *name) {
    return (int64_t)strlen(name) == len && !memcmp(key, name, len);
}

static int span_of(const uint8_t *key, int64_t len) {
    switch (len) {
    case 1: return *key == 's' ? SCOPE : -1;
    case 2: return is(key, len, "ts") ? TS : is(key, len, "id") ? ID : -1;
    case 3: return is(key, len, "pid") ? PID : is(key, len, "tid") ? TID : is(key, len, "dur") ? DUR
                 : is(key, len, "id2") ? ID2 : -1;
    case 4: return is(key, len, "args") ? ARGS : -1;
    case 7: return is(key, len, "bind_id") ? BIND_ID : -1;
    default: return -1;
    }
}

/* Eight characters as load() reads them, for comparing a key at once; FIRST(n) is a mask of the first n of them. */
#define WORD(a, b, c, d, e, f, g, h) \
    ((uint64_t)(a) | (uint64_t)(b) << 8 | (uint64_t)(c) << 16 | (uint64_t)(d) << 24 | (uint64_t)(e) << 32 \
     | (uint64_t)(f) << 40 | (uint64_t)(g) << 48 | (uint64_t)(h) << 56)
#define FIRST(n) (UINT64_MAX >> (64 - 8 * (n)))

/* The key at the quote p, with the colon and the blank that most writers put behind it, compared as a number of eight
 * bytes. Returns the field and moves *at to the value, or returns -1 where it takes a closer look. */
static int usual_key(const uint8_t *p, const uint8_t *end, const uint8_t **at) {
    if (end - p < 16) return -1;
    uint64_t word = load(p);
    switch (word & FIRST(6)) {
    case WORD('"', 'p', 'h', '"', ':', ' ', 0, 0): return *at = p + 6, PHASE;
    case WORD('"', 't', 's', '"', ':', ' ', 0, 0): return *at = p + 6, TS;
    case WORD('"', 'i', 'd', '"', ':', ' ', 0, 0): return *at = p + 6, ID;
    case WORD('"', 'p', 'i', 'd', '"', ':', 0, 0): return *at = p + 6, PID;
    case WORD('"', 't', 'i', 'd', '"', ':', 0, 0): return *at = p + 6, TID;
    case WORD('"', 'd', 'u', 'r', '"', ':', 0, 0): return *at = p + 6, DUR;
    case WORD('"', 'c', 'a', 't', '"', ':', 0, 0): return *at = p + 6, CATEGORY;
    case WORD('"', 'n', 'a', 'm', 'e', '"', 0, 0): return p[6] == ':' ? (*at = p + 7, NAME) : -1;
    case WORD('"', 'a', 'r', 'g', 's', '"', 0, 0): return p[6] == ':' ? (*at = p + 7, ARGS) : -1;
    default: return -1;
    }
}

static int escaped_field_of(const uint8_t *key, int64_t len) {
    static const char *const names[] = {
        [PID] = "pid", [TID] = "tid", [TS] = "ts", [DUR] = "dur", [ID] = "id", [ID2] = "id2", [BIND_ID] = "bind_id",
        [SCOPE] = "s", [ARGS] = "args", [PHASE] = "ph", [NAME] = "name", [CATEGORY] = "cat", [BINDING] = "bp",
        [ARROW_IN] = "flow_in", [ARROW_OUT] = "flow_out"};
    for (int which = 0; which < OTHER; which++)
        if (is_spelled(key, len, names[which])) return which;
    return OTHER;
}

/* The field that a key of any spelling names. */
static int field_of(const uint8_t *key, int64_t len) {
    int which = span_of(key, len);
    return which >= 0 ? which : is(key, len, "ph") ? PHASE : is(key, len, "name") ? NAME
         : is(key, len, "cat") ? CATEGORY : is(key, len, "bp") ? BINDING : is(key, len, "flow_in") ? ARROW_IN
         : is(key, len, "flow_out") ? ARROW_OUT : memchr(key, '\\', len) ? escaped_field_of(key, len) : OTHER;
}
