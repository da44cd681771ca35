/* Counts heap allocations per thread. Replaces malloc and related functions in the executable that links this. */
#ifndef COUNTING_H
#define COUNTING_H

#include <stdint.h>

/* The number of heap allocations that the calling thread has made. */
uint64_t allocation_count(void);

/* Under callgrind, resets the instruction counters, and writes them under a name. Do nothing otherwise. */
void instructions_begin(void);
void instructions_end(const char *name);

#endif
