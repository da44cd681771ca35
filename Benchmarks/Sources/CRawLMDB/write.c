#include "internal.h"

#include <malloc.h>

/* The rows of one table in memory. Each has an 8-byte key length, an 8-byte value length, the key and the value. */
typedef struct {
  uint8_t *bytes;
  size_t byte_count, capacity;
  size_t next;
} rows;

static void append(rows *rows, MDB_val key, MDB_val value) {
  size_t needed = rows->byte_count + 16 + key.mv_size + value.mv_size;
  if (needed > rows->capacity) {
    rows->capacity = needed * 2;
    rows->bytes = realloc(rows->bytes, rows->capacity);
  }
  uint8_t *at = rows->bytes + rows->byte_count;
  memcpy(at, &key.mv_size, 8);
  memcpy(at + 8, &value.mv_size, 8);
  memcpy(at + 16, key.mv_data, key.mv_size);
  memcpy(at + 16 + key.mv_size, value.mv_data, value.mv_size);
  rows->byte_count = needed;
}

static int next(rows *rows, MDB_val *key, MDB_val *value) {
  if (rows->next >= rows->byte_count) return 0;
  uint8_t *at = rows->bytes + rows->next;
  memcpy(&key->mv_size, at, 8);
  memcpy(&value->mv_size, at + 8, 8);
  key->mv_data = at + 16;
  value->mv_data = at + 16 + key->mv_size;
  rows->next += 16 + key->mv_size + value->mv_size;
  return 1;
}

/* The rows of all bands are in one list. */
enum { table_count = 3, heads = 0, dates = 1, bodies = 2 };

static int read_table(MDB_txn *txn, const char *name, rows *rows) {
  MDB_dbi dbi;
  MDB_cursor *cursor;
  MDB_val key, value;
  int rc = mdb_dbi_open(txn, name, 0, &dbi);
  if (!rc) rc = mdb_cursor_open(txn, dbi, &cursor);
  if (rc) return rc;
  while (!(rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT))) append(rows, key, value);
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

static int read_all(const char *source, size_t map_byte_count, rows tables[table_count]) {
  raw_store *store = raw_open(source, map_byte_count);
  if (!store) return 0;
  MDB_txn *txn;
  int rc = mdb_txn_begin(store->environment, NULL, 0, &txn);
  for (int band = 0; !rc && band < band_count; band++) rc = read_table(txn, raw_head_tables[band], &tables[heads]);
  if (!rc) rc = read_table(txn, "dates", &tables[dates]);
  if (!rc) rc = read_table(txn, "bodies", &tables[bodies]);
  mdb_txn_abort(txn);
  raw_close(store);
  return !rc;
}

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ull + time.tv_nsec;
}

uint64_t raw_write(const char *source, const char *target, size_t map_byte_count, size_t batch_byte_count) {
  rows tables[table_count] = {{0}};
  if (!read_all(source, map_byte_count, tables)) return 0;
  MDB_env *environment;
  MDB_txn *txn;
  MDB_dbi bands[band_count], dates_table, bodies_table;
  int rc = mdb_env_create(&environment);
  if (!rc) rc = mdb_env_set_mapsize(environment, map_byte_count);
  if (!rc) rc = mdb_env_set_maxdbs(environment, 16);
  if (!rc) rc = mdb_env_open(environment, target, MDB_NOTLS | MDB_NORDAHEAD | MDB_NOMETASYNC, 0600);
  if (!rc) rc = mdb_txn_begin(environment, NULL, 0, &txn);
  for (int band = 0; !rc && band < band_count; band++)
    rc = mdb_dbi_open(txn, raw_head_tables[band], MDB_CREATE, &bands[band]);
  if (!rc) rc = mdb_dbi_open(txn, "dates", MDB_CREATE, &dates_table);
  if (!rc) rc = mdb_dbi_open(txn, "bodies", MDB_CREATE, &bodies_table);
  if (!rc) rc = mdb_txn_commit(txn);
  uint64_t start = now();
  MDB_val key, value;
  int more = 1;
  while (!rc && more) {
    rc = mdb_txn_begin(environment, NULL, 0, &txn);
    size_t written = 0;
    while (!rc && written < batch_byte_count && (more = next(&tables[heads], &key, &value))) {
      const uint8_t *row = key.mv_data;
      uint8_t body[8];
      raw_body_key(value.mv_data, row, body);
      rc = mdb_put(txn, bands[row[7] & band_mask], &key, &value, MDB_APPEND);
      written += value.mv_size;
      /* The dates are in the order of their own keys: the same work for other entries. */
      if (!rc && next(&tables[dates], &key, &value)) rc = mdb_put(txn, dates_table, &key, &value, MDB_APPEND);
      for (size_t mark = tables[bodies].next; !rc && next(&tables[bodies], &key, &value); mark = tables[bodies].next) {
        if (memcmp(key.mv_data, body, 8)) {
          tables[bodies].next = mark;
          break;
        }
        rc = mdb_put(txn, bodies_table, &key, &value, MDB_APPEND);
        written += value.mv_size;
      }
    }
    if (!rc) rc = mdb_txn_commit(txn);
  }
  if (!rc) rc = mdb_env_sync(environment, 1);
  uint64_t elapsed = now() - start;
  if (rc) fprintf(stderr, "raw_write: %s\n", mdb_strerror(rc));
  mdb_env_close(environment);
  for (int table = 0; table < table_count; table++) free(tables[table].bytes);
  return rc ? 0 : elapsed;
}

size_t raw_heap_byte_count(void) {
  struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}
