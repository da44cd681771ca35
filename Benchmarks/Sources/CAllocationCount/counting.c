#include "counting.h"

#include <stddef.h>
#include <errno.h>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name) (void)(name)
#endif

/* glibc's own functions under their alternative names. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static __thread uint64_t count;

void *malloc(size_t byte_count) {
  count++;
  return __libc_malloc(byte_count);
}

void *calloc(size_t number, size_t byte_count) {
  count++;
  return __libc_calloc(number, byte_count);
}

void *realloc(void *memory, size_t byte_count) {
  count++;
  return __libc_realloc(memory, byte_count);
}

void *memalign(size_t alignment, size_t byte_count) {
  count++;
  return __libc_memalign(alignment, byte_count);
}

void *aligned_alloc(size_t alignment, size_t byte_count) { return memalign(alignment, byte_count); }

int posix_memalign(void **memory, size_t alignment, size_t byte_count) {
  *memory = memalign(alignment, byte_count);
  return *memory ? 0 : ENOMEM;
}

uint64_t allocation_count(void) { return count; }

void instructions_begin(void) { CALLGRIND_ZERO_STATS; }

void instructions_end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
