#ifndef CLMDB_SHIM_H
#define CLMDB_SHIM_H

#include <lmdb.h>
#include <sys/types.h>
#include <unistd.h>

/* Swift has no thread-local variables. This one stores where a thread last found a free read transaction. It is only a
   hint, so each object file may have its own. */
static inline unsigned *clmdb_reader_hint(void) {
  static __thread unsigned hint;
  return &hint;
}

/* Swift imports neither offsetof nor function-like macros such as MDB_VERSION_FULL. */
static inline int clmdb_header_version(void) { return MDB_VERSION_FULL; }

/* Swift sees neither the constants of linux/falloc.h nor the declarations that glibc makes only with _GNU_SOURCE. */
extern int fallocate(int descriptor, int mode, off_t offset, off_t length);

/* Punches a hole into a file, which keeps its length. */
static inline int clmdb_punch_hole(int descriptor, off_t offset, off_t length) {
  return fallocate(descriptor, 0x01 /* FALLOC_FL_KEEP_SIZE */ | 0x02 /* FALLOC_FL_PUNCH_HOLE */, offset, length);
}

/* Allocates disk space for the first bytes of a file, and extends it if necessary. */
static inline int clmdb_allocate(int descriptor, off_t length) { return fallocate(descriptor, 0, 0, length); }

/* Returns the offset of the next bytes that are not in a hole. */
static inline off_t clmdb_next_data(int descriptor, off_t offset) { return lseek(descriptor, offset, 3 /* SEEK_DATA */); }

#endif
