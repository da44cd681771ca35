/* Counts what a thread allocates, by standing in for malloc and its kin in the executable that links this. */
#ifndef COUNTING_H
#define COUNTING_H

#include <stdint.h>

/* How often the calling thread has taken memory from the heap, ever. */
uint64_t allocation_count(void);

/* Under callgrind: forget what was counted, and write what was counted since under a name. Nothing otherwise. */
void instructions_begin(void);
void instructions_end(const char *name);

#endif
