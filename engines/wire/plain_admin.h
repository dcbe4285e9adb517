// Keeps off unencrypted networks what must not cross them: a key, and the administrative doors of a
// server, which no key guards.
#pragma once

#include <string>

#include "http/url.h"

namespace retort::engines {

// True if the address names this host alone: localhost, 127.0.0.0/8, ::1. Looks nothing up.
bool is_loopback(const http::Url& url);

// kInvalidArgument for a key that would go to another host over plain http, where everybody on the
// way reads it. An empty key is none.
void refuse_plain_key(const http::Url& url, const std::string& key);

// kUnauthenticated for administrative doors of another host over plain http, unless `allowed`
// (ExternalOptions::allow_plain_admin). `door`: what it does, for the error.
void refuse_plain_admin(const http::Url& url, bool allowed, const std::string& door);

}  // namespace retort::engines
