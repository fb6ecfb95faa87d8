-- Written by `landbridge slurm install`, which keeps it as it is; `landbridge slurm uninstall` removes it.
--
-- Slurm's burst_buffer/lua calls these functions for every job that has a line #BB_LUA in its script. What they do is in
-- the landbridge command: https://landbridge.example, docs/slurm.md.

lua_script_name = "burst_buffer.lua"

local COMMAND = "@COMMAND@"
local STATE = "@STATE@"
local SERVICE = "@SERVICE@"
local SLURM_CONF = "@CONF@"

local function quoted(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

local function command(name)
    local line = "SLURM_CONF=" .. quoted(SLURM_CONF) .. " " .. quoted(COMMAND) .. " slurm hook --state " .. quoted(STATE)
    return line .. " --service " .. quoted(SERVICE) .. " " .. name
end

-- Lua 5.1 does not say how a command has ended, so the shell writes it behind what the command has written.
local function hook(name, ...)
    local line = command(name)
    for _, word in ipairs({ ... }) do
        line = line .. " " .. quoted(word)
    end
    local pipe = io.popen("(" .. line .. ") 2>&1 </dev/null; echo \"code $?\"")
    if not pipe then
        return slurm.ERROR, "landbridge: cannot run " .. COMMAND
    end
    local text = pipe:read("*a") or ""
    pipe:close()
    local words, code = text:match("^(.-)%s*code (%d+)%s*$")
    if code == "0" then
        return slurm.SUCCESS, words
    end
    slurm.log_error("landbridge: %s: %s", name, words or text)
    return slurm.ERROR, words or text
end

function slurm_bb_job_process(job_script)
    return hook("job-process", job_script)
end

-- Slurm calls this twice a minute, and waits for it: whatever it has forgotten to tear down goes meanwhile.
function slurm_bb_pools()
    local nothing = "test -z \"$(ls -A " .. quoted(STATE) .. " 2>/dev/null)\""
    os.execute(nothing .. " || " .. command("sweep") .. " </dev/null &")
    return slurm.SUCCESS, '{"pools":[{"id":"landbridge","quantity":1,"granularity":1}]}'
end

function slurm_bb_job_teardown(job_id, job_script, hurry)
    return hook("job-teardown", job_id)
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    return slurm.SUCCESS
end

function slurm_bb_data_in(job_id, job_script)
    return hook("data-in", job_id, job_script)
end

function slurm_bb_real_size(job_id)
    return slurm.SUCCESS, "0"
end

function slurm_bb_paths(job_id, job_script, path_file)
    return slurm.SUCCESS
end

function slurm_bb_pre_run(job_id, job_script)
    return hook("pre-run", job_id, job_script)
end

function slurm_bb_post_run(job_id, job_script)
    return slurm.SUCCESS
end

function slurm_bb_data_out(job_id, job_script)
    return hook("data-out", job_id, job_script)
end

function slurm_bb_get_status()
    return hook("get-status")
end
