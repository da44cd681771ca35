#ifndef CZLIB_SHIM_H
#define CZLIB_SHIM_H

#include <zlib.h>

/* Swift passes a UInt32 as a uInt. */
_Static_assert(sizeof(uInt) == 4, "");

/* inflateInit2 is a macro, which Swift does not import. */
static inline int czlib_inflate_init(z_stream *stream, int window_bits) { return inflateInit2(stream, window_bits); }

#endif
