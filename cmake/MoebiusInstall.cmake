# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: programs (moebius_binary adds them) and what they are shown with.
include(GNUInstallDirs)
install(FILES LICENSE README.md DESTINATION "${CMAKE_INSTALL_DOCDIR}" OPTIONAL)
install(DIRECTORY models/demo DESTINATION "${CMAKE_INSTALL_DATADIR}/moebius/models" OPTIONAL)
