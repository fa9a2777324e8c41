/* Preloaded, it ends a process that uses a large block of memory after it was freed (glibc only).

   Blocks of LARGE bytes and more get pages of their own at addresses that are used once; freed, they can neither be read
   nor written. The profiler keeps its events in such blocks. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define LARGE 32768UL
#define PAGE 4096UL
#define BEGIN 0x300000000000UL
#define END 0x340000000000UL

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static uintptr_t next = BEGIN;

/* In the page in front of a block. */
struct size { size_t pages, wanted; };

static struct size *size_of(void *block) { return (struct size *)((char *)block - PAGE); }

static int is_large(void *block) { return (uintptr_t)block >= BEGIN && (uintptr_t)block < END; }

static void *map(void *at, size_t bytes, int access) {
    return mmap(at, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

static void *make(size_t bytes, size_t alignment) {
    size_t pages = (bytes + PAGE - 1) & ~(PAGE - 1);
    alignment = alignment < PAGE ? PAGE : alignment;
    uintptr_t free_from = __atomic_fetch_add(&next, pages + alignment + 2 * PAGE, __ATOMIC_SEQ_CST);
    char *block = (char *)((free_from + PAGE + alignment - 1) & ~(alignment - 1));
    if (map(block - PAGE, pages + PAGE, PROT_READ | PROT_WRITE) == MAP_FAILED) {
        errno = ENOMEM;
        return NULL;
    }
    *size_of(block) = (struct size){pages, bytes};
    return block;
}

void *malloc(size_t bytes) { return bytes < LARGE ? __libc_malloc(bytes) : make(bytes, PAGE); }

void free(void *block) {
    if (is_large(block))
        map(size_of(block), size_of(block)->pages + PAGE, PROT_NONE);
    else
        __libc_free(block);
}

void *calloc(size_t number, size_t bytes) {
    size_t all;
    if (__builtin_mul_overflow(number, bytes, &all) || all < LARGE)
        return __libc_calloc(number, bytes);
    return make(all, PAGE);
}

void *realloc(void *block, size_t bytes) {
    if (!is_large(block))
        return __libc_realloc(block, bytes);
    void *moved = malloc(bytes);
    if (moved != NULL) {
        size_t kept = size_of(block)->wanted;
        memcpy(moved, block, kept < bytes ? kept : bytes);
        free(block);
    }
    return moved;
}

void *memalign(size_t alignment, size_t bytes) {
    return bytes < LARGE ? __libc_memalign(alignment, bytes) : make(bytes, alignment);
}

void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **block, size_t alignment, size_t bytes) {
    void *made = memalign(alignment, bytes);
    if (made == NULL)
        return ENOMEM;
    *block = made;
    return 0;
}
