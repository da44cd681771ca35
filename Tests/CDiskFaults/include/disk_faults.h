/* Intercepts the disk writes of this process, including those of liblmdb.

   The functions of this target replace the C library's `fdatasync`, `pwrite`, `writev` and `getpagesize` in the whole
   process.
   They are in C because Swift exports no symbols of an executable to the libraries that it links. */
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

typedef int (*disk_faults_sync)(int descriptor);
typedef ssize_t (*disk_faults_write)(int descriptor, const void *bytes, size_t count, off_t offset);
typedef ssize_t (*disk_faults_write_vector)(int descriptor, const struct iovec *pieces, int count);

/* Installs hooks that replace the C library's functions; a null hook restores the original. */
void disk_faults_install(disk_faults_sync sync, disk_faults_write write, disk_faults_write_vector write_vector);

/* Call the C library's functions. */
int disk_faults_real_sync(int descriptor);
ssize_t disk_faults_real_write(int descriptor, const void *bytes, size_t count, off_t offset);
ssize_t disk_faults_real_write_vector(int descriptor, const struct iovec *pieces, int count);

/* Makes the machine seem to have pages of this size; 0 for its own. */
void disk_faults_set_page_size(int byte_count);
