#ifndef CLMDB_FILE_BLOCKS_H
#define CLMDB_FILE_BLOCKS_H

#include <linux/fiemap.h>
#include <linux/magic.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <sys/vfs.h>

/* Swift sees no ioctl number that a macro computes, and no array at the end of a structure. The numbers are those of
   linux/fs.h, which conflicts with sys/mount.h. */
#define CLMDB_GET_FLAGS _IOR('f', 1, long)
#define CLMDB_SET_FLAGS _IOW('f', 2, long)
#define CLMDB_FIEMAP _IOWR('f', 11, struct fiemap)
#define CLMDB_NO_COPY_ON_WRITE 0x00800000 /* FS_NOCOW_FL */

/* The kernel's interface, with the extents right behind the structure. */
_Static_assert(sizeof(struct fiemap) == 32 && sizeof(struct fiemap_extent) == 56, "");
_Static_assert(sizeof(long) == 8, "");

/* Whether the file system copies each block that is written, unless a file has a flag against it. */
static inline int clmdb_copies_on_write(int descriptor) {
  struct statfs status;
  return fstatfs(descriptor, &status) == 0 && (unsigned long)status.f_type == BTRFS_SUPER_MAGIC;
}

static inline int clmdb_has_flag_against_copies(int descriptor) {
  unsigned long flags = 0;
  return ioctl(descriptor, CLMDB_GET_FLAGS, &flags) == 0 && (flags & CLMDB_NO_COPY_ON_WRITE) != 0;
}

/* Sets the flag, which an empty file accepts. Ignores errors: without the flag, clmdb_blocks says so. */
static inline void clmdb_set_flag_against_copies(int descriptor) {
  unsigned long flags = 0;
  if (ioctl(descriptor, CLMDB_GET_FLAGS, &flags) != 0) return;
  flags |= CLMDB_NO_COPY_ON_WRITE;
  ioctl(descriptor, CLMDB_SET_FLAGS, &flags);
}

enum clmdb_blocks {
  clmdb_blocks_own,     /* each byte has a block that only this file has */
  clmdb_blocks_missing, /* some bytes have no block */
  clmdb_blocks_shared,  /* some blocks also belong to other files */
  clmdb_blocks_unknown, /* the file system does not tell */
};

/* Examines the blocks of the first bytes of a file. */
static inline enum clmdb_blocks clmdb_blocks(int descriptor, uint64_t length) {
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
    if (ioctl(descriptor, CLMDB_FIEMAP, map) != 0) return clmdb_blocks_unknown;
    uint64_t start = position;
    for (unsigned index = 0; index < map->fm_mapped_extents; index++) {
      if (extents[index].fe_flags & FIEMAP_EXTENT_SHARED) return clmdb_blocks_shared;
      if (extents[index].fe_logical > position) is_missing = 1;
      uint64_t end = extents[index].fe_logical + extents[index].fe_length;
      if (end > position) position = end;
    }
    /* No extent is left. */
    if (position == start) return clmdb_blocks_missing;
  }
  return is_missing ? clmdb_blocks_missing : clmdb_blocks_own;
}

#endif
