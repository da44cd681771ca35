// Stands before the C library's malloc for the whole process. In C, since Swift reserves the name for its runtime.
#include "AllocationCounter.h"

#include <stdatomic.h>

void *__libc_malloc(size_t byte_count);

static atomic_size_t count;

size_t allocation_count(void) { return atomic_load_explicit(&count, memory_order_relaxed); }

void *malloc(size_t byte_count) {
  atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
  return __libc_malloc(byte_count);
}
