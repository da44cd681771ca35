/* Preloaded into a process that uses a store. Records the writes and syncs of data.mdb and of the removal log, so that
   power failures can be simulated, or makes writes to data.mdb fail.

   RECORDER_TRACE=FILE    records to FILE
   RECORDER_FAIL=N        lets operations on data.mdb (writes, syncs, truncations) fail from the Nth on (counted from 0)
   RECORDER_FAIL_COUNT=M  ends the failures after M operations
   RECORDER_ERRNO=E       the error number of the failures; EIO by default
   RECORDER_STOP=N        suspends the process (SIGSTOP) at the Nth write to data.mdb (counted from 0), when it holds
                          LMDB's write lock; syncs do not count, because a process can sync without the lock
   RECORDER_SLOW=N        delays each sync, and each pwrite to a descriptor that syncs, by N microseconds

   A record consists of kind, offset and length, and the bytes of a write. The kind of an event of the removal log is
   larger by 256. All numbers have 64 bits in the machine's byte order. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNCED_WRITE, SYNC_BEGIN, SYNC_END, TRUNCATE, PUNCH, NOTE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *trace;
static long failAt = -1, stopAt = -1, failCount = -1, slow, operations, writes;
static int failure = EIO;
enum { OTHER, DATA, REMOVALS };
static ino_t inodes[3];

#define REAL(result, name, ...)                                                                                        \
  static result (*real)(__VA_ARGS__);                                                                                  \
  if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("RECORDER_TRACE");
  if (path) trace = fopen(path, "wbe");
  if (getenv("RECORDER_FAIL")) failAt = atol(getenv("RECORDER_FAIL"));
  if (getenv("RECORDER_STOP")) stopAt = atol(getenv("RECORDER_STOP"));
  if (getenv("RECORDER_FAIL_COUNT")) failCount = atol(getenv("RECORDER_FAIL_COUNT"));
  if (getenv("RECORDER_SLOW")) slow = atol(getenv("RECORDER_SLOW"));
  if (getenv("RECORDER_ERRNO")) failure = atoi(getenv("RECORDER_ERRNO"));
}

static int endsWith(const char *path, const char *end) {
  size_t length = strlen(path), endLength = strlen(end);
  return length >= endLength && strcmp(path + length - endLength, end) == 0;
}

/* Returns the file of a descriptor. The file is determined each time, because descriptor numbers are reused. */
static int fileOf(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return OTHER;
  for (int file = DATA; file <= REMOVALS; file++)
    if (inodes[file] != 0 && status.st_ino == inodes[file]) return file;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return OTHER;
  path[length] = 0;
  int file = OTHER;
  if (endsWith(path, "/data.mdb")) file = DATA;
  /* The removal log is created under another name. */
  if (endsWith(path, "/LMDBURLCache.removals") || endsWith(path, "/LMDBURLCache.removals.new")) file = REMOVALS;
  if (file != OTHER) inodes[file] = status.st_ino;
  return file;
}

static int isSynced(int fd) { return (fcntl(fd, F_GETFL) & (O_DSYNC | O_SYNC)) != 0; }

static void put(int file, uint64_t kind, uint64_t offset, uint64_t length, const void *bytes) {
  if (!trace) return;
  uint64_t head[3] = {kind + (file == REMOVALS ? 256 : 0), offset, length};
  fwrite(head, sizeof head, 1, trace);
  if (bytes) fwrite(bytes, 1, length, trace);
  fflush(trace);
}

/* Records a change of the expected state; the program looks this function up by its name. */
void recorder_note(uint64_t word, uint64_t value) {
  if (!trace) return;
  pthread_mutex_lock(&lock);
  put(DATA, NOTE, word, value, NULL);
  pthread_mutex_unlock(&lock);
}

/* Counts an operation and returns whether it must fail. */
static int fails(void) {
  if (failAt < 0) return 0;
  long number = __atomic_fetch_add(&operations, 1, __ATOMIC_RELAXED);
  if (number < failAt || (failCount >= 0 && number >= failAt + failCount)) return 0;
  errno = failure;
  return 1;
}

/* Counts a write, suspends the process if it is the selected one, and returns whether the write must fail.

   The signal is sent to this thread. If another thread of the process received it, this one could first end the
   transaction. */
static int writeFails(void) {
  if (stopAt >= 0 && __atomic_fetch_add(&writes, 1, __ATOMIC_RELAXED) == stopAt)
    syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), SIGSTOP);
  return fails();
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
  REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
  int file = fileOf(fd);
  if (file == OTHER) return real(fd, bytes, length, offset);
  if (file == DATA && writeFails()) return -1;
  if (slow > 0 && isSynced(fd)) usleep(slow);
  pthread_mutex_lock(&lock);
  ssize_t written = real(fd, bytes, length, offset);
  if (written > 0) put(file, isSynced(fd) ? SYNCED_WRITE : WRITE, offset, written, bytes);
  pthread_mutex_unlock(&lock);
  return written;
}
ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) { return pwrite(fd, bytes, length, offset); }

static ssize_t record(int file, int fd, const struct iovec *pieces, int count, off_t offset, ssize_t written) {
  ssize_t rest = written;
  for (int i = 0; i < count && rest > 0; i++) {
    size_t length = (size_t)rest < pieces[i].iov_len ? (size_t)rest : pieces[i].iov_len;
    put(file, isSynced(fd) ? SYNCED_WRITE : WRITE, offset, length, pieces[i].iov_base);
    offset += length;
    rest -= length;
  }
  return written;
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) {
  REAL(ssize_t, "pwritev", int, const struct iovec *, int, off_t);
  int file = fileOf(fd);
  if (file == OTHER) return real(fd, pieces, count, offset);
  if (file == DATA && writeFails()) return -1;
  pthread_mutex_lock(&lock);
  ssize_t written = record(file, fd, pieces, count, offset, real(fd, pieces, count, offset));
  pthread_mutex_unlock(&lock);
  return written;
}
ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off_t offset) {
  return pwritev(fd, pieces, count, offset);
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
  REAL(ssize_t, "writev", int, const struct iovec *, int);
  int file = fileOf(fd);
  if (file == OTHER) return real(fd, pieces, count);
  if (file == DATA && writeFails()) return -1;
  pthread_mutex_lock(&lock);
  off_t offset = lseek(fd, 0, SEEK_CUR);
  ssize_t written = record(file, fd, pieces, count, offset, real(fd, pieces, count));
  pthread_mutex_unlock(&lock);
  return written;
}

ssize_t write(int fd, const void *bytes, size_t length) {
  REAL(ssize_t, "write", int, const void *, size_t);
  int file = fileOf(fd);
  if (file == OTHER) return real(fd, bytes, length);
  if (file == DATA && writeFails()) return -1;
  pthread_mutex_lock(&lock);
  off_t offset = lseek(fd, 0, SEEK_CUR);
  ssize_t written = real(fd, bytes, length);
  if (written > 0) put(file, isSynced(fd) ? SYNCED_WRITE : WRITE, offset, written, bytes);
  pthread_mutex_unlock(&lock);
  return written;
}

/* Records the begin and the end of a sync: only writes before its begin are durable at its end. */
static int sync_with(int (*real)(int), int fd) {
  int file = fileOf(fd);
  if (file == OTHER) return real(fd);
  if (file == DATA && fails()) return -1;
  if (slow > 0) usleep(slow);
  static uint64_t number;
  pthread_mutex_lock(&lock);
  uint64_t current = ++number;
  put(file, SYNC_BEGIN, current, 0, NULL);
  pthread_mutex_unlock(&lock);
  int code = real(fd);
  pthread_mutex_lock(&lock);
  if (code == 0) put(file, SYNC_END, current, 0, NULL);
  pthread_mutex_unlock(&lock);
  return code;
}

int fdatasync(int fd) {
  REAL(int, "fdatasync", int);
  return sync_with(real, fd);
}
int fsync(int fd) {
  REAL(int, "fsync", int);
  return sync_with(real, fd);
}

/* LMDB's map is read-only here. Writes through a map could not be recorded. */
int msync(void *start, size_t length, int flags) {
  REAL(int, "msync", void *, size_t, int);
  return real(start, length, flags);
}

int ftruncate(int fd, off_t length) {
  REAL(int, "ftruncate", int, off_t);
  int file = fileOf(fd);
  if (file == OTHER) return real(fd, length);
  if (file == DATA && fails()) return -1;
  pthread_mutex_lock(&lock);
  int code = real(fd, length);
  if (code == 0) put(file, TRUNCATE, length, 0, NULL);
  pthread_mutex_unlock(&lock);
  return code;
}
int ftruncate64(int fd, off_t length) { return ftruncate(fd, length); }

/* Recorded as a change of the file's length. */
int posix_fallocate(int fd, off_t offset, off_t length) {
  REAL(int, "posix_fallocate", int, off_t, off_t);
  int file = fileOf(fd);
  if (file == OTHER) return real(fd, offset, length);
  pthread_mutex_lock(&lock);
  int code = real(fd, offset, length);
  if (code == 0) put(file, TRUNCATE, offset + length, 0, NULL);
  pthread_mutex_unlock(&lock);
  return code;
}
int posix_fallocate64(int fd, off_t offset, off_t length) { return posix_fallocate(fd, offset, length); }

int fallocate(int fd, int mode, off_t offset, off_t length) {
  REAL(int, "fallocate", int, int, off_t, off_t);
  int file = fileOf(fd);
  if (file == OTHER) return real(fd, mode, offset, length);
  pthread_mutex_lock(&lock);
  int code = real(fd, mode, offset, length);
  /* A hole reads as zeros. Unlike the length of a write, this one is not followed by bytes. */
  if (code == 0 && (mode & FALLOC_FL_PUNCH_HOLE)) put(file, PUNCH, offset, length, NULL);
  pthread_mutex_unlock(&lock);
  return code;
}
int fallocate64(int fd, int mode, off_t offset, off_t length) { return fallocate(fd, mode, offset, length); }
