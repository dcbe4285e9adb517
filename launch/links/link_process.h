// A process that measures links, of which `retort check --links` starts one for each end.
#pragma once

namespace retort::launch::links {

// Takes job after job from the store until there is none. Started with a child's context, as a role
// process is. The exit code.
int run_link_process();

}  // namespace retort::launch::links
