/* The limits: what a program in C does with liblmdb and nothing else. */
#ifndef RAWLMDB_H
#define RAWLMDB_H

#include <stddef.h>
#include <stdint.h>

typedef struct raw_store raw_store;

/* Opens a copy of a store's directory: its tables as the store wrote them. NULL on failure. */
raw_store *raw_open(const char *directory, size_t map_byte_count);
void raw_close(raw_store *store);

/* Keys for lookups: `count` keys, one after the other; key i lies at offsets[i]..<offsets[i + 1]. */
typedef struct {
  const uint8_t *bytes;
  const uint32_t *offsets;
} raw_keys;

/* What becomes of a record that was found. */
typedef enum {
  /* One byte of the head and of each piece of the body is touched. */
  raw_copies_none,
  /* Head and body are copied into memory that is used again and again. */
  raw_copies_reused,
  /* Head and body are copied into memory that is taken, and given back, for each. */
  raw_copies_fresh
} raw_copies;

/* For each pick: key, then head, then body. Returns the bytes found, 0 if anything was missing. */
uint64_t raw_read(raw_store *store, raw_keys keys, const uint32_t *picks, size_t count, raw_copies copies);

/* The least possible: a table with the whole record under the key; one mdb_get and one memcpy for each pick. */
raw_store *raw_plain_open(const char *directory, size_t map_byte_count);
int raw_plain_fill(raw_store *store, raw_keys keys, size_t count, size_t value_byte_count);
uint64_t raw_plain_read(raw_store *store, raw_keys keys, const uint32_t *picks, size_t count);

/* Reads all rows of a store's tables, and writes them to another directory in batches of about `batch_byte_count` bytes,
   each committed as the store commits. Returns the nanoseconds that it took, 0 on failure. Rows are read before the clock
   starts. */
uint64_t raw_write(const char *source, const char *target, size_t map_byte_count, size_t batch_byte_count);

/* The bytes that the process has taken from its heap and not given back. */
size_t raw_heap_byte_count(void);

#endif
