#ifndef CFILES_SHIM_H
#define CFILES_SHIM_H

#include <linux/fiemap.h>
#include <linux/magic.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Swift sees no ioctl number that a macro computes, and no array at the end of a structure. The numbers are those of
   linux/fs.h, which conflicts with sys/mount.h. */
#define CFILES_GET_FLAGS _IOR('f', 1, long)
#define CFILES_SET_FLAGS _IOW('f', 2, long)
#define CFILES_FIEMAP _IOWR('f', 11, struct fiemap)
#define CFILES_NO_COPY_ON_WRITE 0x00800000 /* FS_NOCOW_FL */

/* The kernel's interface, with the extents right behind the structure. */
_Static_assert(sizeof(struct fiemap) == 32 && sizeof(struct fiemap_extent) == 56, "");
_Static_assert(sizeof(long) == 8, "");

/* Whether the file system copies each block that is written, unless a file has a flag against it. */
static inline int cfiles_copies_on_write(int descriptor) {
  struct statfs status;
  return fstatfs(descriptor, &status) == 0 && (unsigned long)status.f_type == BTRFS_SUPER_MAGIC;
}

static inline int cfiles_has_flag_against_copies(int descriptor) {
  unsigned long flags = 0;
  return ioctl(descriptor, CFILES_GET_FLAGS, &flags) == 0 && (flags & CFILES_NO_COPY_ON_WRITE) != 0;
}

/* Sets the flag, which an empty file accepts. Ignores errors: without the flag, cfiles_blocks says so. */
static inline void cfiles_set_flag_against_copies(int descriptor) {
  unsigned long flags = 0;
  if (ioctl(descriptor, CFILES_GET_FLAGS, &flags) != 0) return;
  flags |= CFILES_NO_COPY_ON_WRITE;
  ioctl(descriptor, CFILES_SET_FLAGS, &flags);
}

enum cfiles_blocks {
  cfiles_blocks_own,     /* each byte has a block that only this file has */
  cfiles_blocks_missing, /* some bytes have no block */
  cfiles_blocks_shared,  /* some blocks also belong to other files */
  cfiles_blocks_unknown, /* the file system does not tell */
};

/* Examines the blocks of the first bytes of a file. */
static inline enum cfiles_blocks cfiles_blocks(int descriptor, uint64_t length) {
  enum { count = 64 };
  uint64_t buffer[(sizeof(struct fiemap) + count * sizeof(struct fiemap_extent)) / sizeof(uint64_t)];
  struct fiemap *map = (struct fiemap *)buffer;
  const struct fiemap_extent *extents = (const struct fiemap_extent *)(map + 1);
  int is_missing = 0;
  uint64_t position = 0;
  while (position < length) {
    memset(map, 0, sizeof *map);
    map->fm_start = position;
    map->fm_length = length - position;
    map->fm_extent_count = count;
    if (ioctl(descriptor, CFILES_FIEMAP, map) != 0) return cfiles_blocks_unknown;
    uint64_t start = position;
    for (unsigned index = 0; index < map->fm_mapped_extents; index++) {
      if (extents[index].fe_flags & FIEMAP_EXTENT_SHARED) return cfiles_blocks_shared;
      if (extents[index].fe_logical > position) is_missing = 1;
      uint64_t end = extents[index].fe_logical + extents[index].fe_length;
      if (end > position) position = end;
    }
    /* No extent is left. */
    if (position == start) return cfiles_blocks_missing;
  }
  return is_missing ? cfiles_blocks_missing : cfiles_blocks_own;
}

/* Swift sees neither the constants of linux/falloc.h nor the declarations that glibc makes only with _GNU_SOURCE. */
extern int fallocate(int descriptor, int mode, off_t offset, off_t length);

/* Punches a hole into a file, which keeps its length. */
static inline int cfiles_punch_hole(int descriptor, off_t offset, off_t length) {
  return fallocate(descriptor, 0x01 /* FALLOC_FL_KEEP_SIZE */ | 0x02 /* FALLOC_FL_PUNCH_HOLE */, offset, length);
}

/* Allocates disk space for the first bytes of a file, and extends it if necessary. */
static inline int cfiles_allocate(int descriptor, off_t length) { return fallocate(descriptor, 0, 0, length); }

/* Allocates disk space for bytes of a file, and extends it if necessary. */
static inline int cfiles_allocate_range(int descriptor, off_t offset, off_t length) {
  return fallocate(descriptor, 0, offset, length);
}

/* Returns the offset of the next bytes that are not in a hole. */
static inline off_t cfiles_next_data(int descriptor, off_t offset) { return lseek(descriptor, offset, 3 /* SEEK_DATA */); }

#endif
