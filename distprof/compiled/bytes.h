/* Several bytes at a time. */

/* Eight bytes as one number, the first one lowest on every machine. */
static uint64_t load(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline int same_16(const uint8_t *a, const uint8_t *b) {
#ifdef __SSE2__
    __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)a), _mm_loadu_si128((const __m128i *)b));
    return _mm_movemask_epi8(equal) == 0xFFFF;
#else
    return ((load(a) ^ load(b)) | (load(a + 8) ^ load(b + 8))) == 0;
#endif
}

/* memcmp() == 0, inlined: most texts that are compared are a few words long, and a call would cost more than the work.
 * The last word overlaps the one before instead of being read byte by byte. */
static inline __attribute__((always_inline)) int same(const uint8_t *a, const uint8_t *b, int64_t n) {
    if (n < 4) {
        for (; n; n--)
            if (*a++ != *b++) return 0;
        return 1;
    }
    if (n < 8) return !memcmp(a, b, 4) && !memcmp(a + n - 4, b + n - 4, 4);
    if (n < 16) return load(a) == load(b) && load(a + n - 8) == load(b + n - 8);
    for (int64_t i = 0; i + 16 < n; i += 16)
        if (!same_16(a + i, b + i)) return 0;
    return same_16(a + n - 16, b + n - 16);
}

/* How many bytes are equal from the start, n at most. */
static int64_t num_same(const uint8_t *a, const uint8_t *b, int64_t n) {
    int64_t i = 0;
#ifdef __SSE2__
    for (; i + 16 <= n; i += 16) {
        __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(a + i)), _mm_loadu_si128((const __m128i *)(b + i)));
        uint32_t other = (uint32_t)_mm_movemask_epi8(equal) ^ 0xFFFF;
        if (other) return i + __builtin_ctz(other);
    }
#endif
    for (; i + 8 <= n; i += 8) {
        uint64_t other = load(a + i) ^ load(b + i);
        if (other) return i + (__builtin_ctzll(other) >> 3);
    }
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* memcpy(), inlined for what is short, and returns the place behind the copy. */
static inline uint8_t *copy(uint8_t *out, const uint8_t *from, int64_t n) {
    if (n > 128) return (uint8_t *)memcpy(out, from, n) + n;
    if (n >= 16) {
        for (int64_t i = 0; i + 16 < n; i += 16) memcpy(out + i, from + i, 16);
        memcpy(out + n - 16, from + n - 16, 16);
    } else if (n >= 8) {
        memcpy(out, from, 8), memcpy(out + n - 8, from + n - 8, 8);
    } else if (n >= 4) {
        memcpy(out, from, 4), memcpy(out + n - 4, from + n - 4, 4);
    } else {
        for (int64_t i = 0; i < n; i++) out[i] = from[i];
    }
    return out + n;
}

/* A word that holds `byte` eight times: XOR with it makes zeros of the bytes that are equal to it. */
#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))

/* The high bit of each byte below `limit` (at most 128); right up to the first such byte, which is all that is asked. */
static uint64_t below(uint64_t word, uint8_t limit) { return (word - EACH(limit)) & ~word & EACH(0x80); }
