#ifndef CLMDB_SHIM_H
#define CLMDB_SHIM_H

#include <lmdb.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
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

/* LMDB's lock file, which its header does not describe: `struct MDB_txninfo` in mdb.c. Its parts begin at multiples of
   64 bytes, a cache line, so their positions depend on the size of a mutex: 40 bytes on x86-64, 48 on arm64. */
#define CLMDB_LOCK_LINES(size) (((size) + 63) / 64 * 64)
#define CLMDB_LOCK_READER_COUNT(mutex) \
  ((8 + (mutex) + sizeof(size_t) - 1) / sizeof(size_t) * sizeof(size_t) + sizeof(size_t))
#define CLMDB_LOCK_WRITE_MUTEX(mutex) CLMDB_LOCK_LINES(CLMDB_LOCK_READER_COUNT(mutex) + sizeof(unsigned))
#define CLMDB_LOCK_READERS(mutex) (CLMDB_LOCK_WRITE_MUTEX(mutex) + CLMDB_LOCK_LINES(mutex))

/* The first part of the file, up to the number of reader slots. */
struct clmdb_lock_header {
  uint32_t magic;
  uint32_t format;
  pthread_mutex_t reader_mutex;
  size_t transaction;
  unsigned reader_count;
};

/* A reader slot. */
struct clmdb_lock_reader {
  size_t transaction;
  pid_t process;
  pthread_t thread;
};

_Static_assert(sizeof(size_t) == 8 && sizeof(off_t) == 8, "");
_Static_assert(offsetof(struct clmdb_lock_header, transaction) % 8 == 0, "");
_Static_assert(offsetof(struct clmdb_lock_reader, process) == 8 && sizeof(pid_t) == 4, "");
_Static_assert(sizeof(MDB_val) == 16 && offsetof(MDB_val, mv_data) == 8, "");
_Static_assert(offsetof(struct clmdb_lock_header, reader_count) == CLMDB_LOCK_READER_COUNT(sizeof(pthread_mutex_t)), "");
_Static_assert(CLMDB_LOCK_LINES(sizeof(struct clmdb_lock_header)) == CLMDB_LOCK_WRITE_MUTEX(sizeof(pthread_mutex_t)), "");
_Static_assert(CLMDB_LOCK_LINES(sizeof(struct clmdb_lock_reader)) == 64, "");
#if defined(__x86_64__) && defined(__LP64__)
_Static_assert(CLMDB_LOCK_READER_COUNT(sizeof(pthread_mutex_t)) == 56, "");
_Static_assert(CLMDB_LOCK_WRITE_MUTEX(sizeof(pthread_mutex_t)) == 64, "");
_Static_assert(CLMDB_LOCK_READERS(sizeof(pthread_mutex_t)) == 128, "");
#elif defined(__aarch64__) && defined(__LP64__) && defined(__GLIBC__)
_Static_assert(CLMDB_LOCK_READER_COUNT(sizeof(pthread_mutex_t)) == 64, "");
_Static_assert(CLMDB_LOCK_WRITE_MUTEX(sizeof(pthread_mutex_t)) == 128, "");
_Static_assert(CLMDB_LOCK_READERS(sizeof(pthread_mutex_t)) == 192, "");
#endif

/* The offsets of the parts in bytes. */
struct clmdb_lock_layout {
  size_t reader_count; /* how many reader slots were ever in use, as an unsigned */
  size_t write_mutex;
  size_t readers; /* reader slots of 64 bytes */
};

/* Returns the layout for a size of the mutex. */
static inline struct clmdb_lock_layout clmdb_make_lock_layout(size_t mutex) {
  struct clmdb_lock_layout layout = {
      CLMDB_LOCK_READER_COUNT(mutex), CLMDB_LOCK_WRITE_MUTEX(mutex), CLMDB_LOCK_READERS(mutex)};
  return layout;
}

#endif
