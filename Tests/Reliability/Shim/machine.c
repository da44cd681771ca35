/* Preloaded into a process that represents a machine of its own: changes its clocks and its boot ID.

   MACHINE_STATE=FILE    a file of 64 bytes per machine, which the process maps and another one may change at any time:
                         the offset of the wall clock in nanoseconds (int64), the rate of the boot clock in thousandths
                         (int64; 0 means 1000), and the number of the boot (int64)
   MACHINE_NUMBER=N      the place in the file, counted from 0
   MACHINE_PORTS=A:B,…   what connects to the port A connects to the port B, where a proxy is. So servers can be found by
                         others that name their addresses, as Sentinels do, over the network of this process */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct state { volatile int64_t wallOffset, bootRate, bootNumber, unused[5]; };
static const struct state none, *state = &none;

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("MACHINE_STATE"), *number = getenv("MACHINE_NUMBER");
  if (!path || !number) return;
  int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0) return;
  void *memory = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (memory != MAP_FAILED) state = (struct state *)memory + atoi(number);
}

static void set(struct timespec *time, int64_t nanoseconds) {
  time->tv_sec = nanoseconds / 1000000000;
  time->tv_nsec = nanoseconds % 1000000000;
}

static int64_t get(const struct timespec *time) { return time->tv_sec * 1000000000LL + time->tv_nsec; }

int clock_gettime(clockid_t clock, struct timespec *time) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(clock, time);
  if (code != 0) return code;
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) set(time, get(time) + state->wallOffset);
  if (clock == CLOCK_BOOTTIME && state->bootRate != 0) set(time, get(time) / 1000 * state->bootRate);
  return 0;
}

int gettimeofday(struct timeval *time, void *zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}

/* Returns a descriptor with another boot ID for each boot of each machine; -1 for any other file. */
static int openBootID(const char *path) {
  if (strcmp(path, "/proc/sys/kernel/random/boot_id") != 0 || state == &none) return -1;
  int fd = memfd_create("boot_id", MFD_CLOEXEC);
  if (fd >= 0) {
    dprintf(fd, "%08x-0000-4000-8000-%012x\n", (unsigned)state->bootNumber, (unsigned)atoi(getenv("MACHINE_NUMBER")));
    lseek(fd, 0, SEEK_SET);
  }
  return fd;
}

static int openWith(const char *name, const char *path, int flags, mode_t mode) {
  int fd = openBootID(path);
  if (fd >= 0) return fd;
  int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
  return real(path, flags, mode);
}

#define OPEN(name)                                                                                                     \
  int name(const char *path, int flags, ...) {                                                                         \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
      va_list rest;                                                                                                    \
      va_start(rest, flags);                                                                                           \
      mode = va_arg(rest, mode_t);                                                                                     \
      va_end(rest);                                                                                                    \
    }                                                                                                                  \
    return openWith(#name, path, flags, mode);                                                                         \
  }
OPEN(open)
OPEN(open64)

int connect(int fd, const struct sockaddr *address, socklen_t length) {
  int (*real)(int, const struct sockaddr *, socklen_t) =
      (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
  const char *ports = getenv("MACHINE_PORTS");
  struct sockaddr_in other;
  if (!ports || address->sa_family != AF_INET || length < sizeof other) return real(fd, address, length);
  memcpy(&other, address, sizeof other);
  for (unsigned from, to; sscanf(ports, "%u:%u", &from, &to) == 2; ports++) {
    if (from == ntohs(other.sin_port)) {
      other.sin_port = htons(to);
      break;
    }
    ports = strchr(ports, ',');
    if (!ports) break;
  }
  return real(fd, (const struct sockaddr *)&other, sizeof other);
}
