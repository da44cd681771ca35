/* The C baseline: a program on liblmdb and nothing else. */
#ifndef RAWLMDB_H
#define RAWLMDB_H

#include <stddef.h>
#include <stdint.h>

typedef struct raw_store raw_store;

/* Opens a copy of a store's directory, and adds the table `keys`. Returns NULL on failure. */
raw_store *raw_open(const char *directory, size_t map_byte_count);
void raw_close(raw_store *store);

/* Keys for lookups in one piece of memory; key i is in bytes[offsets[i]..<offsets[i + 1]]. */
typedef struct {
  const uint8_t *bytes;
  const uint32_t *offsets;
} raw_keys;

/* How a found record is read. */
typedef enum {
  /* Read one byte of the header and of each body chunk. */
  raw_copies_none,
  /* Copy header and body into one reused buffer. */
  raw_copies_reused
} raw_copies;

/* Looks up key, header and body for each pick. Returns the number of bytes found, or 0 if a row is missing. */
uint64_t raw_read(raw_store *store, raw_keys keys, const uint32_t *picks, size_t count, raw_copies copies);

/* The minimum work: a table with the whole record under the key; one mdb_get and one memcpy for each pick. */
raw_store *raw_plain_open(const char *directory, size_t map_byte_count);
int raw_plain_fill(raw_store *store, raw_keys keys, size_t count, size_t value_byte_count);
uint64_t raw_plain_read(raw_store *store, raw_keys keys, const uint32_t *picks, size_t count);

/* Reads all rows of a store's tables into memory, then writes them to another directory in batches of about
   `batch_byte_count` bytes, each committed as the store commits. Returns the nanoseconds of writing, or 0 on
   failure. */
uint64_t raw_write(const char *source, const char *target, size_t map_byte_count, size_t batch_byte_count);

/* The number of bytes that are allocated on this process's heap. */
size_t raw_heap_byte_count(void);

#endif
