#include <stddef.h>

/// How many blocks this process has asked `malloc` for.
size_t allocation_count(void);
