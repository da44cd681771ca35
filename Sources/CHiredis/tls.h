#ifndef CHIREDIS_TLS_H
#define CHIREDIS_TLS_H

/* TLS by OpenSSL itself. libhiredis_ssl exists since hiredis 1.0, so Debian 12 has none, and it does not compare the
   name in a certificate. */
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

/* These are macros, which Swift does not import. */
static inline int CHiredis_restrict(SSL_CTX *context) {
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  return (int)SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
}

static inline int CHiredis_set_server_name(SSL *ssl, const char *name) {
  return (int)SSL_set_tlsext_host_name(ssl, name);
}

#endif
