#ifndef CXXHASH_SHIM_H
#define CXXHASH_SHIM_H

#include <stddef.h>
#include <xxhash.h>

/* Hashes are stored. Those of XXH3 are the same in all versions from 0.8 on. */
#if XXH_VERSION_NUMBER < 800
#error "xxHash is too old: its XXH3 has other results"
#endif
_Static_assert(sizeof(XXH128_hash_t) == 16 && offsetof(XXH128_hash_t, high64) == 8, "");

#endif
