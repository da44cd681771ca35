#ifndef RAWLMDB_INTERNAL_H
#define RAWLMDB_INTERNAL_H

#include "rawlmdb.h"

#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* The record headers are in one table per band. The lower three bits of a row ID are the band. */
enum { band_count = 6, band_mask = 7 };
extern const char *const raw_head_tables[band_count];

/* Offsets in the fixed part of a record header, and its size. */
enum { record_flags = 9, key_byte_count = 16, body_byte_count = 32, body_id = 112, fixed_byte_count = 128 };

struct raw_store {
  MDB_env *environment;
  MDB_dbi keys, heads[band_count], bodies;
};

/* Writes the ID of a record's body as a key of `bodies`, which are big-endian. A record without one has its row ID. */
static inline void raw_body_key(const uint8_t *head, const uint8_t row_key[8], uint8_t body_key[8]) {
  uint64_t number;
  memcpy(&number, head + body_id, 8);
  if (number) {
    number = __builtin_bswap64(number);
    memcpy(body_key, &number, 8);
  } else {
    memcpy(body_key, row_key, 8);
  }
}

#endif
