#include "internal.h"

/* Callers open the tables by name, as the store does; see the article "Storage format". */
static raw_store *open_environment(const char *directory, size_t map_byte_count, unsigned int flags) {
  raw_store *store = calloc(1, sizeof *store);
  if (!store) return NULL;
  int rc = mdb_env_create(&store->environment);
  if (!rc) rc = mdb_env_set_mapsize(store->environment, map_byte_count);
  if (!rc) rc = mdb_env_set_maxdbs(store->environment, 16);
  if (!rc) rc = mdb_env_set_maxreaders(store->environment, 1024);
  if (!rc) rc = mdb_env_open(store->environment, directory, MDB_NOTLS | MDB_NORDAHEAD | flags, 0600);
  if (rc) {
    fprintf(stderr, "%s: %s\n", directory, mdb_strerror(rc));
    free(store);
    return NULL;
  }
  return store;
}

const char *const raw_head_tables[band_count] = {"heads0", "heads1", "heads2", "heads3", "heads4", "heads5"};

/* Adds the keys of one table of record headers. */
static int add_keys_of(raw_store *store, MDB_txn *txn, MDB_dbi heads) {
  MDB_cursor *cursor;
  MDB_val row_key, head;
  int rc = mdb_cursor_open(txn, heads, &cursor);
  if (rc) return rc;
  while (!(rc = mdb_cursor_get(cursor, &row_key, &head, MDB_NEXT))) {
    uint32_t count;
    memcpy(&count, (const char *)head.mv_data + key_byte_count, 4);
    MDB_val key = {count, (char *)head.mv_data + fixed_byte_count};
    if ((rc = mdb_put(txn, store->keys, &key, &row_key, 0))) break;
  }
  mdb_cursor_close(cursor);
  return rc == MDB_NOTFOUND ? 0 : rc;
}

/* Adds a table from cache key to row ID, built from the record headers. The store itself finds rows by its index file
   outside LMDB. */
static int add_keys(raw_store *store) {
  MDB_txn *txn;
  int rc = mdb_txn_begin(store->environment, NULL, 0, &txn);
  if (rc) return rc;
  rc = mdb_dbi_open(txn, "keys", MDB_CREATE, &store->keys);
  for (int band = 0; !rc && band < band_count; band++) {
    rc = mdb_dbi_open(txn, raw_head_tables[band], 0, &store->heads[band]);
    if (!rc) rc = add_keys_of(store, txn, store->heads[band]);
  }
  if (!rc) return mdb_txn_commit(txn);
  mdb_txn_abort(txn);
  return rc;
}

raw_store *raw_open(const char *directory, size_t map_byte_count) {
  char path[4096];
  struct stat status;
  snprintf(path, sizeof path, "%s/data.mdb", directory);
  if (!map_byte_count && stat(path, &status) == 0) map_byte_count = (size_t)status.st_size / 2 * 3 + (64 << 20);
  raw_store *store = open_environment(directory, map_byte_count, 0);
  if (!store) return NULL;
  MDB_txn *txn;
  int rc = add_keys(store);
  if (!rc) rc = mdb_txn_begin(store->environment, NULL, 0, &txn);
  if (!rc) rc = mdb_dbi_open(txn, "bodies", 0, &store->bodies);
  if (!rc) rc = mdb_txn_commit(txn);
  if (rc) {
    fprintf(stderr, "%s: %s\n", directory, mdb_strerror(rc));
    return NULL;
  }
  return store;
}

void raw_close(raw_store *store) {
  if (!store) return;
  mdb_env_close(store->environment);
  free(store);
}

/* Prevents the compiler from removing copies whose result is never read. */
static inline void keep(void *memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

uint64_t raw_read(raw_store *store, raw_keys keys, const uint32_t *picks, size_t count, raw_copies copies) {
  MDB_txn *txn;
  if (mdb_txn_begin(store->environment, NULL, MDB_RDONLY, &txn)) return 0;
  mdb_txn_reset(txn);
  uint8_t *reused = malloc(4 << 20);
  uint64_t total = 0;
  volatile uint8_t touched = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t start = keys.offsets[picks[i]], end = keys.offsets[picks[i] + 1];
    MDB_val key = {end - start, (void *)(keys.bytes + start)}, row_key, head;
    if (mdb_txn_renew(txn)) return 0;
    if (mdb_get(txn, store->keys, &key, &row_key)) return 0;
    const uint8_t *row = row_key.mv_data;
    if (mdb_get(txn, store->heads[row[7] & band_mask], &row_key, &head)) return 0;
    const uint8_t *record = head.mv_data;
    size_t filled = head.mv_size;
    uint64_t body_count = 0, copied = 0;
    if (!(record[record_flags] & 1)) memcpy(&body_count, record + body_byte_count, 8);
    if (copies) {
      memcpy(reused, record, head.mv_size);
    } else {
      touched += record[0];
    }
    if (body_count > 0) {
      uint8_t chunk_bytes[12] = {0};
      raw_body_key(record, row, chunk_bytes);
      MDB_val chunk_key = {12, chunk_bytes}, chunk;
      for (uint32_t index = 0; copied < body_count; index++) {
        uint32_t number = __builtin_bswap32(index);
        memcpy(chunk_bytes + 8, &number, 4);
        if (mdb_get(txn, store->bodies, &chunk_key, &chunk)) return 0;
        if (copies) {
          memcpy(reused + filled, chunk.mv_data, chunk.mv_size);
        } else {
          touched += *(const uint8_t *)chunk.mv_data;
        }
        copied += chunk.mv_size;
        filled += chunk.mv_size;
      }
    }
    total += filled;
    keep(reused);
    mdb_txn_reset(txn);
  }
  mdb_txn_abort(txn);
  free(reused);
  return total;
}

raw_store *raw_plain_open(const char *directory, size_t map_byte_count) {
  raw_store *store = open_environment(directory, map_byte_count, MDB_NOSYNC);
  if (!store) return NULL;
  MDB_txn *txn;
  int rc = mdb_txn_begin(store->environment, NULL, 0, &txn);
  if (!rc) rc = mdb_dbi_open(txn, NULL, 0, &store->keys);
  if (!rc) rc = mdb_txn_commit(txn);
  return rc ? NULL : store;
}

int raw_plain_fill(raw_store *store, raw_keys keys, size_t count, size_t value_byte_count) {
  uint8_t *value = malloc(value_byte_count);
  memset(value, 7, value_byte_count);
  size_t batch = value_byte_count > 100000 ? 8 : 256;
  for (size_t i = 0; i < count;) {
    MDB_txn *txn;
    if (mdb_txn_begin(store->environment, NULL, 0, &txn)) return 0;
    for (size_t n = 0; n < batch && i < count; n++, i++) {
      uint32_t start = keys.offsets[i], end = keys.offsets[i + 1];
      MDB_val key = {end - start, (void *)(keys.bytes + start)}, data = {value_byte_count, value};
      if (mdb_put(txn, store->keys, &key, &data, 0)) return 0;
    }
    if (mdb_txn_commit(txn)) return 0;
  }
  free(value);
  return 1;
}

uint64_t raw_plain_read(raw_store *store, raw_keys keys, const uint32_t *picks, size_t count) {
  MDB_txn *txn;
  if (mdb_txn_begin(store->environment, NULL, MDB_RDONLY, &txn)) return 0;
  mdb_txn_reset(txn);
  uint8_t *memory = malloc(4 << 20);
  uint64_t total = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t start = keys.offsets[picks[i]], end = keys.offsets[picks[i] + 1];
    MDB_val key = {end - start, (void *)(keys.bytes + start)}, value;
    if (mdb_txn_renew(txn) || mdb_get(txn, store->keys, &key, &value)) return 0;
    memcpy(memory, value.mv_data, value.mv_size);
    total += value.mv_size;
    keep(memory);
    mdb_txn_reset(txn);
  }
  mdb_txn_abort(txn);
  free(memory);
  return total;
}
