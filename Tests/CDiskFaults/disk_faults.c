#define _GNU_SOURCE
#include "disk_faults.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

/* The hooks have the types of what they replace, also of the variants for large files. */
#define IS_SAME(function, type) __builtin_types_compatible_p(__typeof__(&function), type)
_Static_assert(IS_SAME(fdatasync, disk_faults_sync), "");
_Static_assert(IS_SAME(pwrite, disk_faults_write) && sizeof(off_t) == 8, "");
_Static_assert(IS_SAME(writev, disk_faults_write_vector), "");

static _Atomic(disk_faults_sync) syncHook;
static _Atomic(disk_faults_write) writeHook;
static _Atomic(disk_faults_write_vector) writeVectorHook;

void disk_faults_install(disk_faults_sync sync, disk_faults_write write, disk_faults_write_vector write_vector) {
  atomic_store(&syncHook, sync);
  atomic_store(&writeHook, write);
  atomic_store(&writeVectorHook, write_vector);
}

int disk_faults_real_sync(int descriptor) {
  static _Atomic(disk_faults_sync) real;
  disk_faults_sync function = atomic_load(&real);
  if (!function) atomic_store(&real, function = (disk_faults_sync)dlsym(RTLD_NEXT, "fdatasync"));
  return function(descriptor);
}

ssize_t disk_faults_real_write(int descriptor, const void *bytes, size_t count, off_t offset) {
  static _Atomic(disk_faults_write) real;
  disk_faults_write function = atomic_load(&real);
  if (!function) atomic_store(&real, function = (disk_faults_write)dlsym(RTLD_NEXT, "pwrite"));
  return function(descriptor, bytes, count, offset);
}

ssize_t disk_faults_real_write_vector(int descriptor, const struct iovec *pieces, int count) {
  static _Atomic(disk_faults_write_vector) real;
  disk_faults_write_vector function = atomic_load(&real);
  if (!function) atomic_store(&real, function = (disk_faults_write_vector)dlsym(RTLD_NEXT, "writev"));
  return function(descriptor, pieces, count);
}

EXPORTED int fdatasync(int descriptor) {
  disk_faults_sync hook = atomic_load(&syncHook);
  return hook ? hook(descriptor) : disk_faults_real_sync(descriptor);
}

EXPORTED ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t offset) {
  disk_faults_write hook = atomic_load(&writeHook);
  return hook ? hook(descriptor, bytes, count, offset) : disk_faults_real_write(descriptor, bytes, count, offset);
}

EXPORTED ssize_t writev(int descriptor, const struct iovec *pieces, int count) {
  disk_faults_write_vector hook = atomic_load(&writeVectorHook);
  return hook ? hook(descriptor, pieces, count) : disk_faults_real_write_vector(descriptor, pieces, count);
}

static _Atomic(int) pageSize;

void disk_faults_set_page_size(int byte_count) { atomic_store(&pageSize, byte_count); }

EXPORTED int getpagesize(void) {
  int size = atomic_load(&pageSize);
  return size ? size : (int)sysconf(_SC_PAGESIZE);
}
