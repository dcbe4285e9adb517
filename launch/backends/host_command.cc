#include "launch/backends/host_command.h"

#include "launch/doctor/host_answer.h"
#include "launch/ssh/host_loop.h"

namespace retort::launch {

int run_host() { return serve_as_host(doctor::answer_as_host); }

}  // namespace retort::launch
