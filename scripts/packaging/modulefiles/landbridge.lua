-- Landbridge's modulefile for Lmod. Put it where modules are looked for as landbridge/VERSION.lua, and the unpacked tar.zst to
-- $LANDBRIDGE_ROOT_FOLDER/VERSION (or change `root`).
local version = myModuleVersion()
local root = pathJoin(os.getenv("LANDBRIDGE_ROOT_FOLDER") or "/opt/landbridge", version)

whatis("Name: Landbridge")
whatis("Version: " .. version)
whatis("Description: Runs one unmodified MPI program across private clusters that cannot reach each other")
help([[
landbridge run -n 64 -- ./solver    runs a program across your sites
landbridge sites add NAME USER@HOST adds a site
man landbridge                      explains every command
]])

if not isFile(pathJoin(root, "bin", "landbridge")) then
    LmodError("there is no " .. pathJoin(root, "bin", "landbridge") .. ": unpack Landbridge's tar.zst to " .. root)
end
conflict("landbridge")
prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("MANPATH", pathJoin(root, "share", "man"))
-- No LANDBRIDGE_PROVIDER: the command finds the provider in ../lib/landbridge.
