// clang: -mcpu=v1
#include "cpu.h"
