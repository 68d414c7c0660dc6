// clang: -mcpu=v1
// also: clang-14 clang-16
#include "cpu.h"
