#ifndef CHIREDIS_SHIM_H
#define CHIREDIS_SHIM_H

#include <hiredis/hiredis.h>

/* Versions before 0.14 have other types here. hiredis has no function that returns the version of the loaded library,
   but the name of the library contains it. */
_Static_assert(_Generic(((redisReply *)0)->len, size_t: 1, default: 0), "");
_Static_assert(_Generic(((redisReply *)0)->elements, size_t: 1, default: 0), "");
_Static_assert(_Generic(((redisReply *)0)->integer, long long: 1, default: 0), "");
_Static_assert(_Generic(((redisContext *)0)->fd, int: 1, default: 0), "");
_Static_assert(_Generic(((redisReader *)0)->ridx, int: 1, default: 0), "");

#endif
