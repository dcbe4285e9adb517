// The scenarios of teacher_layouts_test: what a rank of a teacher, or of a student that asks it,
// does in a process of its own.
#pragma once

namespace retort::roles {

// Where the ranks of a teacher, and all processes with the test, meet in its store.
inline constexpr const char* kTeacher = "run/teacher/0/";
inline constexpr const char* kRun = "run/";

void teacher_scenario();
void student_scenario();
void refused_scenario();
void failover_scenario();
void ties_scenario();

}  // namespace retort::roles
