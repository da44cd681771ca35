#ifndef RAWLMDB_INTERNAL_H
#define RAWLMDB_INTERNAL_H

#include "rawlmdb.h"

#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

struct raw_store {
  MDB_env *environment;
  MDB_dbi keys, heads, bodies;
};

#endif
