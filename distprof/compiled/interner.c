/* Interner: equal bytes get equal numbers, counted from 0 in the order in which they first appear.
 *
 * An open hash table (linear probing, at most half full) of numbers; the bytes stand one after the other in an arena.
 */

struct Interner {
    uint64_t *hashes; /* 0 is free */
    int32_t *slots;
    int64_t mask;
    int64_t count;
    int64_t *ends; /* of each string in the arena */
    int64_t max_count;
    uint8_t *arena;
    int64_t arena_size;
    int64_t failed; /* there was no memory for a string once: its number was -1 */
};

void interner_free(Interner *in) {
    free(in->hashes), free(in->slots), free(in->ends), free(in->arena), free(in);
}

Interner *interner_new(void) {
    Interner *in = calloc(1, sizeof *in);
    if (!in) return NULL;
    in->mask = 1023;
    in->hashes = calloc(1024, sizeof *in->hashes);
    in->slots = malloc(1024 * sizeof *in->slots);
    in->max_count = 512;
    in->ends = malloc(512 * sizeof *in->ends);
    in->arena_size = 1 << 14;
    in->arena = malloc(in->arena_size);
    if (in->hashes && in->slots && in->ends && in->arena) return in;
    return interner_free(in), NULL;
}

int64_t interner_count(const Interner *in) { return in->count; }
const uint8_t *interner_arena(const Interner *in) { return in->arena; }
const int64_t *interner_ends(const Interner *in) { return in->ends; }

static uint64_t hash_of(const uint8_t *s, int64_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ (uint64_t)n, w = 0;
    const uint8_t *end = s + n;
    for (; end - s > 8; s += 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    if (n >= 8) memcpy(&w, end - 8, 8); /* some of it twice: faster than a part of a word */
    else for (w = 0; s < end; s++) w = w << 8 | *s;
    h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    return h ? h : 1;
}

static int grow(Interner *in) {
    int64_t size = 2 * (in->mask + 1);
    uint64_t *hashes = calloc(size, sizeof *hashes);
    int32_t *slots = malloc(size * sizeof *slots);
    int64_t *ends = realloc(in->ends, size / 2 * sizeof *ends);
    if (ends) in->ends = ends;
    if (!hashes || !slots || !ends) return free(hashes), free(slots), 0;
    for (int64_t i = 0; i <= in->mask; i++)
        if (in->hashes[i]) {
            int64_t at = in->hashes[i] & (size - 1);
            while (hashes[at]) at = (at + 1) & (size - 1);
            hashes[at] = in->hashes[i], slots[at] = in->slots[i];
        }
    free(in->hashes), free(in->slots);
    in->hashes = hashes, in->slots = slots, in->mask = size - 1, in->max_count = size / 2;
    return 1;
}

int32_t interner_add(Interner *in, const uint8_t *s, int64_t n) {
    uint64_t h = hash_of(s, n);
    int64_t at = h & in->mask;
    for (; in->hashes[at]; at = (at + 1) & in->mask)
        if (in->hashes[at] == h) {
            int32_t i = in->slots[at];
            int64_t from = i ? in->ends[i - 1] : 0;
            if (in->ends[i] - from == n && same(in->arena + from, s, n)) return i;
        }
    if (in->count == in->max_count) {
        if (in->count >= INT32_MAX / 2 || !grow(in)) return in->failed = 1, -1;
        for (at = h & in->mask; in->hashes[at];) at = (at + 1) & in->mask;
    }
    int64_t from = in->count ? in->ends[in->count - 1] : 0;
    if (n > in->arena_size - from) {
        int64_t size = 2 * (from + n);
        uint8_t *arena = realloc(in->arena, size);
        if (!arena) return in->failed = 1, -1;
        in->arena = arena, in->arena_size = size;
    }
    memcpy(in->arena + from, s, n);
    in->ends[in->count] = from + n;
    in->hashes[at] = h, in->slots[at] = (int32_t)in->count;
    return (int32_t)in->count++;
}
