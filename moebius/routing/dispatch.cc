// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/dispatch.h"
