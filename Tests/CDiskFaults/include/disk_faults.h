/* Lets a test stand between this process, liblmdb included, and the disk.

   The functions of this target take the place of the C library's `fdatasync`, `pwrite` and `writev` in the whole process.
   They are in C because Swift exports no symbol of an executable to the libraries that it links. */
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

typedef int (*disk_faults_sync)(int descriptor);
typedef ssize_t (*disk_faults_write)(int descriptor, const void *bytes, size_t count, off_t offset);
typedef ssize_t (*disk_faults_write_vector)(int descriptor, const struct iovec *pieces, int count);

/* From now on these are called in place of the C library's. */
void disk_faults_install(disk_faults_sync sync, disk_faults_write write, disk_faults_write_vector write_vector);

/* The C library's. */
int disk_faults_real_sync(int descriptor);
ssize_t disk_faults_real_write(int descriptor, const void *bytes, size_t count, off_t offset);
ssize_t disk_faults_real_write_vector(int descriptor, const struct iovec *pieces, int count);
