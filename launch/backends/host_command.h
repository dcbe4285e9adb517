// retort host: starts and watches the processes of a run on this host for a launcher on another
// one, which runs it by ssh and speaks with it over its standard input and output.
#pragma once

namespace retort::launch {

// serve_as_host(), with the checks of `retort doctor` for what the launcher's host asks.
int run_host();

}  // namespace retort::launch
